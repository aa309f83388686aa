// SPDX-License-Identifier: Apache-2.0
// Elements and their text. What a server says becomes text, never markup.

const UNITS = ["B", "kB", "MB", "GB", "TB"];
const PARTS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const NOTHING = "–";
let aheadMs = 0; // of the server's clock, which made the times, before this one's

export function byId(id) {
  return document.getElementById(id);
}

/** A new element with attributes and children; a child that is a string becomes text. */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Set a text only where it differs: a selection, and what a screen reader reads, stay. */
export function put(node, text) {
  const [only] = node.childNodes;
  if (node.childNodes.length === 1 && only.nodeType === Node.TEXT_NODE) {
    if (only.data !== text) only.data = text;
  } else if (text !== "" || only) {
    node.textContent = text;
  }
}

export function text(value) {
  return value === null || value === undefined || value === "" ? NOTHING : String(value);
}

export function number(value) {
  return Number.isFinite(value) ? value.toLocaleString() : NOTHING;
}

/** Decimal units: 1 kB is 1,000 bytes. */
export function bytes(value) {
  if (!Number.isFinite(value)) return NOTHING;
  const power = Math.min(UNITS.length - 1, value < 1000 ? 0 : Math.floor(Math.log10(value) / 3));
  const shown = value / 1000 ** power;
  return `${shown.toLocaleString(undefined, { maximumFractionDigits: shown < 10 && power ? 1 : 0 })} ${UNITS[power]}`;
}

export function saved(row) {
  if (!(row.body_bytes > 0) || !Number.isFinite(row.sent_bytes)) return NOTHING;
  const share = (100 * (row.body_bytes - row.sent_bytes)) / row.body_bytes;
  return `${share.toLocaleString(undefined, { maximumFractionDigits: 1 })} %`;
}

/** Hear when the server wrote what just came. */
export function setServerTime(iso) {
  const at = Date.parse(iso);
  if (Number.isFinite(at)) aheadMs = at - Date.now();
}

export function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const [length, unit] = PARTS.find(([length]) => seconds >= length) ?? PARTS.at(-1);
  return `${Math.floor(seconds / length)} ${unit} ago`;
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString();
}

/** Say a time in a <time>: how long ago, or in the user's zone; its title is the ISO form. */
export function putTime(node, iso, { relative = false } = {}) {
  const at = Date.parse(iso);
  const known = Number.isFinite(at);
  node.classList.toggle("ago", relative && known);
  if (!known) {
    node.removeAttribute("datetime");
    node.removeAttribute("title");
    put(node, text(iso));
    return;
  }
  if (node.getAttribute("datetime") !== iso) {
    node.setAttribute("datetime", iso);
    node.setAttribute("title", iso);
  }
  put(node, relative ? ago(Date.now() + aheadMs - at) : new Date(at).toLocaleString());
}

/** Let what is shown as "ago" grow older. */
export function age() {
  for (const node of document.querySelectorAll("time.ago")) {
    putTime(node, node.getAttribute("datetime"), { relative: true });
  }
}

/** Fill a <dl> with [term, description] pairs, or [term, description, class]. */
export function putFacts(list, facts) {
  while (list.children.length > facts.length) list.lastChild.remove();
  facts.forEach(([term, description, kind = ""], place) => {
    if (!list.children[place]) list.append(make("div", {}, make("dt"), make("dd")));
    const [dt, dd] = list.children[place].children;
    put(dt, term);
    put(dd, description);
    dd.className = kind;
  });
}
