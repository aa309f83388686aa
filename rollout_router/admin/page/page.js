// SPDX-License-Identifier: Apache-2.0
// The live page: what the address names is asked for as a stream of views, and each is shown.
// Text of the server becomes text alone; nothing here makes markup of it.

import { readView, takeToken, writeView } from "./address.js";
import { Stream } from "./api.js";
import { changeGate, drain, force, reap, sayError, showToken } from "./changes.js";
import { showCharts } from "./charts.js";
import { lifeRow, refreshLife, showLife } from "./life.js";
import { showOrder, showRollouts, showWorkers } from "./tables.js";
import { age, ago, byId, bytes, clock, make, number, put, putFacts, saved, setServerTime, text } from "./text.js";

const ROWS = 100;
const TYPING_MS = 200;
const NEWS_MS = 5000;
const FILTERS = ["q", "worker", "state", "outcome"];
const THEME = "rollout-router-colours";

let view = readView();
let watched = ""; // the parameters of the stream
let latest = null;
let latestAt = 0;
let connection = "connecting";

const stream = new Stream({
  view: show,
  state: showConnection,
  silenceMs: 1000 * Number(document.documentElement.dataset.silenceS),
});

/** Go to another view; everything that depends on it follows. */
function go(change, { push = false } = {}) {
  view = { ...view, ...change };
  writeView(view, { push });
  follow();
}

function follow() {
  for (const name of FILTERS) {
    const field = byId(name);
    if (field.tagName === "SELECT") offer(field, view[name]);
    if (field.value !== view[name]) field.value = view[name];
  }
  showOrder(view);
  showLife(view.rollout);
  const { q, worker, state, outcome, sort, order, page } = view;
  const asked = { q, worker, state, outcome, sort, order, offset: (page - 1) * ROWS, limit: ROWS };
  for (const name of FILTERS) if (!asked[name]) delete asked[name];
  if (watched === JSON.stringify(asked)) return;
  watched = JSON.stringify(asked);
  byId("rollouts-table").setAttribute("aria-busy", "true");
  stream.open(asked);
}

function show({ overview, rollouts }) {
  latest = overview;
  latestAt = Date.now();
  setServerTime(overview.at);
  showHead(overview);
  showTotals(overview.totals);
  showCharts(overview.series, overview.at);
  showWorkers(overview.workers);
  for (const worker of overview.workers) offer(byId("worker"), worker.id);
  for (const row of rollouts.rollouts) offer(byId("outcome"), row.last_outcome);
  showRollouts(rollouts.rollouts);
  byId("rollouts-table").removeAttribute("aria-busy");
  showWindow(rollouts);
  hear(overview.totals.takeovers);
  refreshLife();
  tick();
}

function showHead(overview) {
  const { gate } = overview;
  put(byId("service"), text(overview.service));
  put(byId("store"), text(overview.store_id));
  put(byId("url"), text(overview.url));
  put(byId("gate"), gate.open ? "open" : `closed by ${text(gate.by)}: ${text(gate.why)}`);
  byId("gate").className = gate.open ? "good" : "warn";
  put(byId("gate-change"), gate.open ? "Close the gate…" : "Open the gate…");
  document.title = `rollout-router ${text(overview.service)}`;
}

function showTotals(totals) {
  putFacts(byId("totals"), [
    ["Rollouts", number(totals.rollouts)],
    ["In flight", number(totals.in_flight)],
    ["Turns", number(totals.turns)],
    ["Body", bytes(totals.body_bytes)],
    ["Sent", bytes(totals.sent_bytes)],
    ["Saved", `${bytes(totals.saved_bytes)} (${saved(totals)})`],
    ["Take-overs", number(totals.takeovers)],
    ["Resyncs", number(totals.resyncs)],
    ["Releases", number(totals.releases)],
    ...(totals.unreadable > 0 ? [["Unreadable claims", number(totals.unreadable), "bad"]] : []),
    ...(totals.left_out > 0 ? [["Rollouts left out", number(totals.left_out), "warn"]] : []),
  ]);
}

function showWindow({ total, matching, offset, rollouts }) {
  const pages = Math.max(1, Math.ceil(matching / ROWS));
  if (view.page > pages) {
    go({ page: pages });
    return;
  }
  const of = matching === total ? number(total) : `${number(matching)} that match, ${number(total)} in all`;
  put(byId("window"), matching === 0
    ? `no rollout matches, ${number(total)} in all`
    : `${number(offset + 1)} to ${number(offset + rollouts.length)} of ${of}`);
  setPage("first", 1, view.page > 1);
  setPage("previous", view.page - 1, view.page > 1);
  setPage("next", view.page + 1, view.page < pages);
  setPage("last", pages, view.page < pages);
}

function setPage(id, page, possible) {
  byId(id).dataset.page = page;
  byId(id).setAttribute("aria-disabled", String(!possible)); // it keeps the focus, unlike a disabled one
}

function offer(select, value) {
  if (!value || [...select.options].some((option) => option.value === value)) return;
  select.append(make("option", { value }, value));
}

function showConnection(state) {
  connection = state;
  put(byId("connection"), state);
  byId("connection").className = state === "live" ? "good" : "warn";
  const old = state !== "live" && latest !== null;
  document.body.classList.toggle("is-old", old);
  byId("old").hidden = !old;
  if (old) put(byId("old"), `What is shown is old: nothing came since ${clock(latestAt)}.`);
}

function tick() {
  if (latest) put(byId("updated"), `${ago(Date.now() - latestAt)}`);
}

// Take-overs are told to those who cannot see them, in one sentence at a time.
const news = { counted: null, pending: 0, timer: 0 };

function hear(takeovers) {
  if (news.counted !== null) news.pending += Math.max(0, takeovers - news.counted);
  news.counted = takeovers;
  if (news.pending > 0 && !news.timer) tell();
}

function tell() {
  news.timer = 0;
  if (news.pending === 0) return;
  const what = news.pending === 1 ? "1 rollout was" : `${number(news.pending)} rollouts were`;
  put(byId("news"), `${what} taken over from a dead worker at ${clock(Date.now())}.`);
  news.pending = 0;
  news.timer = setTimeout(tell, NEWS_MS);
}

function wireFilters() {
  const filters = byId("filters");
  let typing = 0;
  const apply = () => {
    clearTimeout(typing);
    go({ ...Object.fromEntries(FILTERS.map((name) => [name, byId(name).value])), page: 1 });
  };
  filters.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(apply, TYPING_MS);
  });
  filters.addEventListener("change", apply);
  filters.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
  filters.addEventListener("reset", () => setTimeout(apply));
  byId("rollouts-table").tHead.addEventListener("click", ({ target }) => {
    const sort = target.closest("th")?.dataset.sort;
    if (!sort || !target.closest("button")) return;
    go({ sort, order: view.sort === sort && view.order === "asc" ? "desc" : "asc", page: 1 });
  });
  for (const id of ["first", "previous", "next", "last"]) {
    byId(id).addEventListener("click", ({ target }) => {
      if (target.getAttribute("aria-disabled") !== "true") go({ page: Number(target.dataset.page) }, { push: true });
    });
  }
}

function wireLife() {
  byId("rollouts-table").tBodies[0].addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go({ rollout: link.closest("tr").row.rollout_id }, { push: true });
  });
  byId("life").addEventListener("close", () => go({ rollout: "" }, { push: true }));
  byId("life-close").addEventListener("click", () => byId("life").close());
}

function wireChanges() {
  byId("reap").addEventListener("click", reap);
  byId("gate-change").addEventListener("click", () => {
    if (latest) changeGate(latest.gate);
    else sayError("Nothing is known of the gate yet.");
  });
  byId("force").addEventListener("click", () => force(lifeRow()));
  byId("workers").addEventListener("click", ({ target }) => {
    const button = target.closest("button.change");
    if (button) drain(button.closest("tr").row);
  });
}

function wireTheme() {
  const use = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  byId("theme").value = localStorage.getItem(THEME) ?? "";
  use(byId("theme").value);
  byId("theme").addEventListener("change", ({ target }) => {
    localStorage.setItem(THEME, target.value);
    use(target.value);
  });
}

byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the view's
  byId("rollouts").focus();
});
addEventListener("popstate", () => {
  takeToken();
  showToken();
  view = readView();
  follow();
});
setInterval(() => {
  tick();
  age();
}, 1000);

takeToken();
view = readView();
wireTheme();
wireFilters();
wireLife();
wireChanges();
showToken();
follow();
