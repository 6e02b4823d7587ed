// What the scripts of the Node clients share: `node SCRIPT.mjs REAL_URL TALKER_URL` prints a line of JSON per check.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";

// URLs, without a path: of a daemon with a real model, and of one whose model writes what the conversation asks for.
export const [REAL, TALKER] = process.argv.slice(2);
export const [REAL_MODEL, TALKER_MODEL] = ["SmolLM2-135M-Instruct", "scripted"];

export const QUESTION = "What is the capital of Canada?";
export const [CALL, RESULT] = ['CALL add {"a": 2, "b": 3}', "done: 5"];
export const COUNT = "COUNT 4000"; // takes many seconds, unless it is aborted
export const [FIRST, SECOND, RECALLED] = ["SAY apples and pears", "RECALL it", "apples and pears"];

// What answers under a schema are: any model ends it by itself.
export const City = z.object({ city: z.enum(["Ottawa", "Oslo"]), is_capital: z.boolean() });
export const Numbers = z.object({ a: z.number().int(), b: z.number().int() });

const SECONDS = 10;

/** Runs the function and prints whether it threw. */
export async function check(name, run) {
  let line;
  try {
    line = { name, ok: true, detail: String((await run()) ?? "") };
  } catch (error) {
    line = { name, ok: false, detail: `${error.name}: ${error.message} ${error.responseBody ?? ""}`.slice(0, 2000) };
  }
  console.log(JSON.stringify(line));
}

/** Throws unless they are equal. */
export function expect(found, wanted) {
  assert.deepEqual(found, wanted);
}

/** Checks an answer to QUESTION; `pieces`: how many the stream had. */
export function expectAnswer(text, pieces) {
  assert.ok(text?.includes("Ottawa"), `got ${JSON.stringify(text)}`);
  assert.ok(pieces === undefined || pieces > 2, `got ${JSON.stringify(text)} in ${pieces} pieces`);
}

async function activeRequests() {
  const text = await (await fetch(`${TALKER}/metrics`)).text();
  const found = /^draftd_engine_active_requests\{.*\} (\S+)$/m.exec(text);
  assert.ok(found, "/metrics shows no draftd_engine_active_requests");
  return Number(found[1]);
}

/** Checks, within a stream, that the daemon counts its request. */
export async function expectRunning() {
  expect(await activeRequests(), 1);
}

/** Waits until the daemon counts no request. Returns after how long. */
export async function expectIdle() {
  const began = performance.now();
  for (let active; (active = await activeRequests()); ) {
    assert.ok(performance.now() < began + SECONDS * 1000, `${active} requests run ${SECONDS} s after the abort`);
    await sleep(50);
  }
  return `idle after ${((performance.now() - began) / 1000).toFixed(2)} s`;
}
