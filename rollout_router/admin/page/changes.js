// SPDX-License-Identifier: Apache-2.0
// What the page changes. Each change is confirmed in a dialog that says what will happen, and starts
// on Cancel; reap and force show the dry run's answer there.

import { ask } from "./api.js";
import { setToken, token } from "./address.js";
import { allowChanges } from "./tables.js";
import { byId, make, number, put, text } from "./text.js";

const NAMED_MAX = 20;
const KINDS = {
  freed: "Rollouts that become free; their next call takes them under a higher claim epoch",
  lost: "Sessions that are lost, and answered with 410",
  moved: "Claims that have moved since, and stay",
  forgotten: "Lost sessions that are forgotten",
  owners: "Owner files that go",
  sockets: "Sockets that go",
  leftovers: "Leftovers that go",
  unreadable: "Records that cannot be read, and stay",
  failed: "What could not be cleared",
};

const dialog = byId("confirm");
const form = dialog.querySelector("form");
const reason = byId("reason");

/** Ask; gives the reason, "" where none is wanted, or null for Cancel. */
function confirmed({ title, what, list = [], yes, wantsReason = false }) {
  put(byId("confirm-heading"), title);
  byId("confirm-what").replaceChildren(...what.map((line) => make("p", {}, line)));
  byId("confirm-list").replaceChildren(...list.map((line) => make("li", {}, line)));
  byId("confirm-list").hidden = list.length === 0;
  byId("confirm-reason").hidden = !wantsReason;
  reason.required = wantsReason;
  reason.value = "";
  put(byId("confirm-yes"), yes);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((answer) => {
    dialog.addEventListener("close", () => answer(dialog.returnValue === "yes" ? reason.value.trim() : null), { once: true });
  });
}

byId("confirm-no").addEventListener("click", () => dialog.close("no"));
byId("confirm-yes").addEventListener("click", () => {
  reason.value = reason.value.trim();
  if (form.reportValidity()) dialog.close("yes");
});
form.addEventListener("submit", (event) => {
  event.preventDefault(); // Enter in the reason: one more look before it is done
  byId("confirm-yes").focus();
});

/** Where a message is seen: what is behind a modal dialog is not. */
function regions() {
  const place = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document;
  return { alert: place.querySelector(".alert"), done: place.querySelector(".done") };
}

export function sayError(message) {
  const { alert, done } = regions();
  const dismiss = make("button", { type: "button" }, "Dismiss");
  dismiss.addEventListener("click", () => alert.replaceChildren());
  alert.replaceChildren(message, dismiss);
  put(done, "");
}

function sayDone(message) {
  const { alert, done } = regions();
  alert.replaceChildren();
  put(done, message);
}

/** Run a change that somebody asked for. */
async function change(does) {
  sayDone("");
  if (!token()) {
    sayError("Changing needs the admin token: it lies in the file admin of the store. Put it into the field under Changes.");
    if (!document.querySelector("dialog[open]")) byId("token").focus();
    return;
  }
  try {
    const done = await does();
    if (done) sayDone(done);
  } catch (error) {
    sayError(error.message);
  }
}

function named(one) {
  return typeof one === "string" ? one : `${text(one.path)} (${text(one.code)})`;
}

export const reap = () => change(async () => {
  const would = await ask("claims/reap", { yes: false });
  const found = Object.keys(KINDS).filter((kind) => would[kind]?.length);
  if (found.length === 0) return "There is nothing to reap: no dead worker left anything.";
  const list = found.flatMap((kind) => [
    `${KINDS[kind]}: ${number(would[kind].length)}`,
    ...would[kind].slice(0, NAMED_MAX).map(named),
    ...(would[kind].length > NAMED_MAX ? [`and ${number(would[kind].length - NAMED_MAX)} more`] : []),
  ]);
  const what = ["This frees what workers that are proven dead held. The dry run says:"];
  if (await confirmed({ title: "Reap dead workers’ claims?", what, list, yes: "Reap them" }) === null) return "";
  const done = await ask("claims/reap", { yes: true });
  const left = [...(done.failed ?? []).map(named), ...(done.ended_by ? [done.ended_by] : [])];
  if (left.length) throw new Error(`Not everything could be cleared: ${left.slice(0, NAMED_MAX).join("; ")}.`);
  return `Reaped. Rollouts that are free now: ${number(done.freed?.length ?? 0)}.`;
});

export const force = (row) => change(async () => {
  const path = `claims/${encodeURIComponent(row.rollout_id)}/force`;
  const expected = { expect_epoch: row.claim_epoch };
  const would = await ask(path, { ...expected, reason: "dry run", yes: false });
  const what = [
    row.claim_epoch === null
      ? `The dry run says: the unreadable claim of rollout ${row.rollout_id} would be removed.`
      : `The dry run says: rollout ${row.rollout_id} would be taken from worker ${text(would.worker_id)}, which has it under claim epoch ${text(would.claim_epoch)}.`,
    "Its owner is fenced, alive or not: nothing that it still has in hand is recorded. The next call takes the rollout under a higher claim epoch.",
  ];
  const why = await confirmed({ title: `Force ${row.rollout_id} away?`, what, yes: "Force it away", wantsReason: true });
  if (why === null) return "";
  const done = await ask(path, { ...expected, reason: why, yes: true });
  return `Rollout ${row.rollout_id} is free; every claim epoch up to ${text(done.fenced_epoch)} is fenced.`;
});

export const drain = (worker) => change(async () => {
  const what = [
    `Worker ${worker.id} finishes its calls in flight (${number(worker.in_flight)}), gives its rollouts back (${number(worker.claims)}) and ends.`,
    "Sessions that it holds are lost. Under serve another worker takes its place.",
  ];
  if (await confirmed({ title: "Drain this worker?", what, yes: "Drain it" }) === null) return "";
  await ask(`workers/${encodeURIComponent(worker.id)}/drain`, {});
  return `Worker ${worker.id} drains.`;
});

export const changeGate = (gate) => change(async () => {
  if (gate.open) {
    const what = ["Every call that comes from now on is refused with 503 and your reason; calls in flight finish."];
    const why = await confirmed({ title: "Close the gate?", what, yes: "Close it", wantsReason: true });
    if (why === null) return "";
    const { blockers = [] } = await ask("admission/close", { why });
    return `The gate is closed${blockers.length ? `; what is still in hand: ${number(blockers.length)}` : ""}.`;
  }
  const what = [`It was closed by ${text(gate.by)}: ${text(gate.why)}. Calls are let in again.`];
  if (await confirmed({ title: "Open the gate?", what, yes: "Open it" }) === null) return "";
  await ask("admission/open", {});
  return "The gate is open.";
});

/** Say whether changing is possible, and let a token be given. */
export function showToken() {
  const given = Boolean(token());
  allowChanges(given);
  byId("token-forget").hidden = !given;
  put(byId("token-state"), given
    ? "A token is set, for as long as this tab is open."
    : "Changing needs the admin token: open the page by the address that serve printed, or put it here.");
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value.trim());
  byId("token").value = "";
  showToken();
});
byId("token-forget").addEventListener("click", () => {
  setToken("");
  showToken();
  byId("token").focus();
});
