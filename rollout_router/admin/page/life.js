// SPDX-License-Identifier: Apache-2.0
// A rollout's life as a timeline, in a dialog that follows it while it is open.

import { ask } from "./api.js";
import { byId, bytes, make, number, put, putFacts, putTime, saved, text } from "./text.js";
import { Rows } from "./rows.js";

const SAID = {
  claim_taken: "Claimed",
  claim_taken_over: "Transferred",
  claim_taken_again: "Claimed again",
  claim_released: "Released",
  claim_lost: "Forced away",
  claim_reaped: "Freed: its owner is dead",
  release_failed: "Release failed, tried again",
  session_lost: "Session lost",
  resync: "Resynced",
  refused: "Refused",
  draining: "Its worker leaves",
  swept: "Swept",
};

const PAUSE_MS = 1000; // the answer reads the disk

const dialog = byId("life");
let shown = ""; // the rollout, while the dialog is open
let row = null;
let asking = false;
let wanted = false; // something changed since it was asked for
let askedAt = 0;
let timer = 0;

const events = new Rows(byId("events"), {
  key: (event) => JSON.stringify(event),
  build: () => make("li", {}, make("strong"), make("span"), make("span", { class: "muted" }, make("time"), make("span"))),
  fill(element, event) {
    const [what, where, details] = element.children;
    const [at, more] = details.children;
    put(what, SAID[event.event] ?? text(event.event));
    const from = event.from_worker ? ` from worker ${event.from_worker}` : "";
    const worker = event.worker_id ? `${from ? " to" : " by"} worker ${event.worker_id}` : "";
    put(where, from + worker);
    putTime(at, event.at);
    put(more, [
      event.claim_epoch == null ? "" : `, claim epoch ${event.claim_epoch}`,
      event.request_id ? `, request ${event.request_id}` : "",
      event.reason ? `, reason: ${event.reason}` : "",
    ].join(""));
  },
});

/** Show a rollout, or with an empty id none. */
export function showLife(id) {
  if (shown === id) return;
  shown = id;
  if (!id) {
    if (dialog.open) dialog.close();
    return;
  }
  row = null;
  put(byId("life-heading"), `Rollout ${id}`);
  putFacts(byId("life-facts"), []);
  dialog.querySelector(".alert").replaceChildren();
  put(dialog.querySelector(".done"), "");
  byId("force").hidden = true;
  sayFailed("");
  events.show([]);
  if (!dialog.open) dialog.showModal();
  clearTimeout(timer);
  timer = askedAt = 0;
  refreshLife();
}

/** Ask again what became of it, now or after a pause. */
export function refreshLife() {
  wanted = Boolean(shown);
  if (wanted && !asking && !timer) timer = setTimeout(refresh, askedAt + PAUSE_MS - Date.now());
}

async function refresh() {
  const id = shown;
  timer = 0;
  if (!id) return;
  wanted = false;
  asking = true;
  askedAt = Date.now();
  try {
    const found = await ask(`rollouts/${encodeURIComponent(id)}`);
    if (id === shown) {
      fill(found);
      sayFailed("");
    }
  } catch (error) {
    if (id === shown) {
      if (error.status === 404) fill({});
      sayFailed(error.message);
    }
  } finally {
    asking = false;
    if (wanted || (shown && id !== shown)) refreshLife();
  }
}

function sayFailed(message) {
  byId("life-error").hidden = !message;
  put(byId("life-error"), message);
}

/** The row as it is shown now, or null where nobody owns the rollout. */
export function lifeRow() {
  return row;
}

function fill({ rollout, claim, timeline }) {
  const unreadable = claim?.unreadable;
  row = rollout ?? claim?.claim ?? (unreadable ? { rollout_id: shown, claim_epoch: null } : null);
  byId("force").hidden = row === null;
  putFacts(byId("life-facts"), factsOf(row, unreadable));
  events.show(timeline ?? []);
  byId("no-events").hidden = Boolean(timeline?.length);
}

function factsOf(found, unreadable) {
  if (found === null) return [["Owner", "nobody owns it now"]];
  if (found.claim_epoch === null) return [["Claim", `unreadable: ${text(unreadable.code)}`, "bad"]];
  return [
    ["Owner", text(found.worker_id)],
    ["Verdict on it", text(found.verdict)],
    ["State", text(found.state).replace("_", " ")],
    ["Claim epoch", text(found.claim_epoch)],
    ["Turns", number(found.turns)],
    ["In flight", number(found.in_flight)],
    ["Body", bytes(found.body_bytes)],
    ["Sent", bytes(found.sent_bytes)],
    ["Saved", saved(found)],
    ["Resyncs", number(found.resyncs)],
    ["Last outcome", text(found.last_outcome)],
  ];
}
