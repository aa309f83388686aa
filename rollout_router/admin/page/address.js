// SPDX-License-Identifier: Apache-2.0
// What is shown stands in the fragment of the address, so that a view can be shared; the admin
// token leaves it at once, and lives as long as the tab.

const NOTHING_SAID = { q: "", worker: "", state: "", outcome: "", sort: "rollout_id", order: "asc", page: 1, rollout: "" };
const TOKEN = "rollout-router-admin-token";

/** The view that the address names. */
export function readView() {
  const said = new URLSearchParams(location.hash.slice(1));
  const view = { ...NOTHING_SAID };
  for (const name of Object.keys(view)) if (said.has(name)) view[name] = said.get(name);
  view.page = Math.max(1, Math.trunc(Number(view.page)) || 1);
  if (view.order !== "desc") view.order = "asc";
  return view;
}

/** The fragment that names a view; what is not said is as at first. */
export function fragmentOf(view) {
  const said = Object.entries(view).filter(([name, value]) => value !== NOTHING_SAID[name]);
  return `#${new URLSearchParams(said)}`;
}

/** Name a view in the address; *push* lets the browser's back button return from it. */
export function writeView(view, { push = false } = {}) {
  const fragment = fragmentOf(view);
  const address = fragment === "#" ? location.pathname + location.search : fragment;
  if (fragmentOf(readView()) === fragment) return;
  history[push ? "pushState" : "replaceState"](null, "", address);
}

/** Keep the token of the address, if there is one, and take it out of the address. */
export function takeToken() {
  const said = new URLSearchParams(location.hash.slice(1));
  if (!said.has("token")) return;
  setToken(said.get("token"));
  said.delete("token");
  history.replaceState(null, "", said.size ? `#${said}` : location.pathname + location.search);
}

export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}
