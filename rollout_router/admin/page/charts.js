// SPDX-License-Identifier: Apache-2.0
// Two charts of the last ten minutes, and the same in words and as a table.

import { byId, bytes, make, number, put, putTime } from "./text.js";
import { Rows } from "./rows.js";

const SVG = "http://www.w3.org/2000/svg";
const SPAN_S = 600;
const STEP_S = 5;
const HEIGHT = 100;
const MINUTE_MS = 60_000;

const paths = new Map();
const minutes = new Rows(byId("minutes").tBodies[0], {
  key: (row) => row.at,
  build: () => make("tr", {}, make("th", { scope: "row" }, make("time")), ...[1, 2, 3, 4].map(() => make("td", { class: "number" }))),
  fill(element, row) {
    const [at, takeovers, saved, sent, turns] = element.children;
    putTime(at.firstChild, row.at);
    put(takeovers, number(row.takeovers));
    put(saved, bytes(row.saved_bytes));
    put(sent, bytes(row.sent_bytes));
    put(turns, number(row.turns));
  },
});

export function showCharts(series, now) {
  const end = Date.parse(now);
  const steps = series
    .map((step) => ({ ...step, x: SPAN_S - (end - Date.parse(step.at)) / 1000 - STEP_S }))
    .filter((step) => step.x > -STEP_S);
  draw("takeovers", steps, [["takeovers", (step) => step.takeovers]], (total, [most]) =>
    `Take-overs in the last 10 minutes: ${number(total.takeovers)}, at most ${number(most)} in 5 seconds`);
  draw("bytes", steps, [["sent", (step) => step.sent_bytes], ["saved", (step) => step.saved_bytes]], (total) =>
    `In the last 10 minutes ${bytes(total.saved)} were saved and ${bytes(total.sent)} were sent`);
  minutes.show(byMinute(series));
}

/** Draw layers on one another, each a path of bars, and say what they show. */
function draw(id, steps, layers, said) {
  const heights = steps.map((step) => layers.map(([, of]) => Math.max(0, of(step) || 0)));
  const sums = heights.map((layer) => layer.reduce((sum, one) => sum + one, 0));
  const most = Math.max(0, ...sums);
  const total = {};
  layers.forEach(([name], layer) => {
    let d = "";
    steps.forEach((step, place) => {
      const below = heights[place].slice(0, layer).reduce((sum, one) => sum + one, 0);
      if (heights[place][layer] > 0) d += bar(step.x, below / most, heights[place][layer] / most);
    });
    pathOf(id, name).setAttribute("d", d);
    total[name] = heights.reduce((sum, layer_) => sum + layer_[layer], 0);
  });
  const svg = byId(id).querySelector("svg");
  const label = said(total, [most]);
  if (svg.getAttribute("aria-label") !== label) svg.setAttribute("aria-label", label);
}

function bar(x, from, height) {
  const tall = height * HEIGHT * 0.95;
  return `M${x.toFixed(1)} ${(HEIGHT - from * HEIGHT * 0.95).toFixed(1)}v${(-tall).toFixed(1)}h${STEP_S - 1}v${tall.toFixed(1)}z`;
}

function pathOf(id, name) {
  const key = `${id} ${name}`;
  if (!paths.has(key)) {
    const figure = byId(id);
    const svg = figure.querySelector("svg") ?? figure.appendChild(document.createElementNS(SVG, "svg"));
    svg.setAttribute("role", "img");
    svg.setAttribute("viewBox", `0 0 ${SPAN_S} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    const path = svg.appendChild(document.createElementNS(SVG, "path"));
    path.setAttribute("class", name);
    paths.set(key, path);
  }
  return paths.get(key);
}

function byMinute(series) {
  const found = new Map();
  for (const step of series) {
    const at = new Date(Math.floor(Date.parse(step.at) / MINUTE_MS) * MINUTE_MS).toISOString();
    const row = found.get(at) ?? { at };
    for (const name of ["takeovers", "saved_bytes", "sent_bytes", "turns"]) {
      if (Number.isFinite(step[name])) row[name] = (row[name] ?? 0) + step[name];
    }
    found.set(at, row);
  }
  return [...found.values()].sort((one, other) => other.at.localeCompare(one.at));
}
