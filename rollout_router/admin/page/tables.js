// SPDX-License-Identifier: Apache-2.0
// The tables of workers and rollouts: which columns they have, and how a row fills them.

import { fragmentOf } from "./address.js";
import { byId, bytes, make, number, put, putTime, saved, text } from "./text.js";
import { Rows } from "./rows.js";

const ROWS_MAX = 100;
const VERDICTS = { alive: "good", dead: "bad", unknown: "warn" };
const STATES = { owned: ["owned", ""], owner_dead: ["owner dead", "bad"], lost: ["lost", "bad"] };
const OUTCOMES = { completed: "good", failed: "bad", cancelled: "warn", refused: "warn" };

/** Changing may be asked for always; without a token a button says what is missing. */
export function allowChanges(allowed) {
  for (const button of document.querySelectorAll("button.change")) mark(button, allowed);
  changesAllowed = allowed;
}

let changesAllowed = false;

function mark(button, allowed) {
  button.setAttribute("aria-disabled", String(!allowed));
  if (allowed) button.removeAttribute("aria-describedby");
  else button.setAttribute("aria-describedby", "token-state");
}

const workers = new Rows(byId("workers").tBodies[0], {
  key: (row) => row.id,
  build() {
    const button = make("button", { type: "button", class: "change" }, "Drain…");
    mark(button, changesAllowed);
    const plain = ["number", "", "number", "number", "number", "number", "number"];
    return make("tr", {},
      make("th", { scope: "row", class: "id" }),
      ...plain.map((kind) => make("td", { class: kind })),
      make("td", {}, make("time")),
      make("td", {}, button));
  },
  fill(element, row) {
    const [id, pid, verdict, inFlight, claims, lag, bases, held, started, change] = element.children;
    put(id, text(row.id));
    put(pid, text(row.pid));
    put(verdict, verdictOf(row));
    verdict.className = row.answers === false ? "warn" : VERDICTS[row.verdict] ?? "";
    if (row.verdict === "dead") verdict.className = "bad";
    put(inFlight, number(row.in_flight));
    put(claims, number(row.claims));
    put(lag, Number.isFinite(row.lag_ms) ? `${number(row.lag_ms)} ms` : text(null));
    put(bases, number(row.bases));
    put(held, bytes(row.base_bytes));
    putTime(started.firstChild, row.started_at, { relative: true });
    const [button] = change.children;
    const gone = row.verdict === "dead" || Boolean(row.leaving);
    if (gone && button === document.activeElement) element.closest(".scroll").focus();
    button.hidden = gone;
    button.setAttribute("aria-label", `Drain worker ${text(row.id)}…`);
  },
});

function verdictOf(row) {
  const said = [text(row.verdict)];
  if (row.answers === false && row.verdict !== "dead") said.push("silent");
  if (row.leaving) said.push("leaving");
  return said.join(", ");
}

export function showWorkers(rows) {
  const living = [...rows].sort((one, other) => (one.verdict === "dead") - (other.verdict === "dead"));
  workers.show(living.slice(0, ROWS_MAX));
  const leftOut = byId("workers-left-out");
  leftOut.hidden = rows.length <= ROWS_MAX;
  put(leftOut, `and ${number(rows.length - ROWS_MAX)} more`);
}

const rollouts = new Rows(byId("rollouts-table").tBodies[0], {
  key: (row) => row.rollout_id,
  build() {
    const numbers = ["number", "number", "number", "number", "number", "number"];
    return make("tr", {},
      make("th", { scope: "row", class: "id" }, make("a")),
      make("td"),
      make("td", { class: "id" }),
      ...numbers.map((kind) => make("td", { class: kind })),
      make("td", {}, make("time")),
      make("td"),
      make("td", {}, make("time")));
  },
  fill(element, row) {
    const [id, state, owner, epoch, turns, inFlight, body, sent, share, claimed, outcome, last] = element.children;
    const [link] = id.children;
    const href = fragmentOf({ rollout: row.rollout_id });
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
    put(link, text(row.rollout_id));
    const [said, kind] = STATES[row.state] ?? [text(row.state), ""];
    put(state, row.kind === "session" ? `${said} (session)` : said);
    state.className = kind;
    put(owner, text(row.worker_id));
    const before = epoch.textContent;
    put(epoch, text(row.claim_epoch));
    if (before && before !== epoch.textContent) element.classList.add("changed");
    put(turns, number(row.turns));
    put(inFlight, number(row.in_flight));
    put(body, bytes(row.body_bytes));
    put(sent, bytes(row.sent_bytes));
    put(share, saved(row));
    putTime(claimed.firstChild, row.claimed_at, { relative: true });
    put(outcome, text(row.last_outcome));
    outcome.className = OUTCOMES[row.last_outcome] ?? "";
    putTime(last.firstChild, row.last_at, { relative: true });
  },
});

byId("rollouts-table").addEventListener("animationend", ({ target }) => target.classList.remove("changed"));

export function showRollouts(rows) {
  rollouts.show(rows.slice(0, ROWS_MAX));
}

/** Mark the column that sorts. */
export function showOrder(view) {
  for (const head of document.querySelectorAll("th[data-sort]")) {
    if (head.dataset.sort !== view.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", view.order === "desc" ? "descending" : "ascending");
  }
}
