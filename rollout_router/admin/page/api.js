// SPDX-License-Identifier: Apache-2.0
// The API of the admin address: documents, changes, and the stream of views.

import { token } from "./address.js";

const ANSWER_MS = 60_000; // reaping goes through the whole store
const AGAIN_MS = [500, 1000, 2000, 5000];

/** A document, or an Error with the message of the API. With a body it is a change. */
export async function ask(path, body) {
  const signal = AbortSignal.timeout(ANSWER_MS);
  const options = body === undefined ? { signal } : {
    signal,
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token()}` },
    body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(`api/${path}`, options);
  } catch (error) {
    throw new Error("The admin address does not answer.", { cause: error });
  }
  const document = await answer.json().catch(() => null);
  if (answer.ok && document) return document;
  const error = new Error(document?.error?.message ?? `The admin address answered ${answer.status}.`);
  throw Object.assign(error, { status: answer.status });
}

/**
 * The stream of views. It opens again by itself, whatever became of it. A service in which nothing
 * happens sends nothing either, so a stream that was silent for long is opened anew without a word:
 * the first view comes at once, or the address does not answer.
 */
export class Stream {
  /**
   * @param {(view) => void} view is called with each.
   * @param {(state) => void} state is called with connecting, live or reconnecting.
   * @param {number} silenceMs after which a stream is opened anew; a first view has a quarter of it.
   */
  constructor({ view, state, silenceMs }) {
    Object.assign(this, { view, state, silenceMs });
    this.failures = 0;
    // A browser has six connections to an address for all its tabs: who is not seen holds none.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open(this.parameters)));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", ({ persisted }) => persisted && this.open(this.parameters));
  }

  /** Watch with these parameters from now on. */
  open(parameters) {
    this.parameters = parameters;
    this.close();
    if (document.hidden) return;
    const source = new EventSource(`api/stream?${new URLSearchParams(parameters)}`);
    this.source = source;
    this.timer = setTimeout(() => this.fail(), this.silenceMs / 4);
    source.addEventListener("view", (event) => {
      if (source !== this.source) return;
      this.failures = 0;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.open(this.parameters), this.silenceMs);
      this.state("live");
      this.view(JSON.parse(event.data));
    });
    // Not left to the browser: it gives up where the answer is an error.
    source.addEventListener("error", () => source === this.source && this.fail());
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  fail() {
    this.close();
    this.state("reconnecting");
    this.timer = setTimeout(() => this.open(this.parameters), AGAIN_MS[Math.min(this.failures, AGAIN_MS.length - 1)]);
    this.failures += 1;
  }
}
