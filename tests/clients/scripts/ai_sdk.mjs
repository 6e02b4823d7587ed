// What the scripts of the AI SDK's providers share.

import { generateText, isStepCount, Output, streamText, tool } from "ai";
import * as checks from "./checks.mjs";
import { check, expect, expectAnswer } from "./checks.mjs";

/** Runs the checks. `real` and `talker`: models of the two daemons; `providerOptions`: for an answer under a schema. */
export async function checkProvider(real, talker, providerOptions) {
  await check("plain", async () => {
    expectAnswer((await generateText({ model: real, prompt: checks.QUESTION, maxOutputTokens: 24, maxRetries: 0 })).text);
  });

  await check("stream", async () => {
    const result = streamText({ model: real, prompt: checks.QUESTION, maxOutputTokens: 24, maxRetries: 0, onError });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    expectAnswer(pieces.join(""), pieces.length);
  });

  await check("schema", async () => {
    const output = Output.object({ schema: checks.City });
    const asked = { model: real, prompt: checks.QUESTION, maxOutputTokens: 64, maxRetries: 0, output, providerOptions };
    checks.City.parse((await generateText(asked)).output);
  });

  await check("tools", async () => {
    const run = async ({ a, b }) => a + b;
    const tools = { add: tool({ description: "Adds two numbers.", inputSchema: checks.Numbers, execute: run }) };
    const asked = {
      model: talker, prompt: checks.CALL, tools, stopWhen: isStepCount(3), maxOutputTokens: 200, maxRetries: 0,
    };
    const result = await generateText(asked);
    expect([result.steps.length, result.text], [2, checks.RESULT]);
    expect(await streamText({ ...asked, onError }).text, checks.RESULT);
  });

  await check("abort", async () => {
    const controller = new AbortController();
    const result = streamText({
      model: talker, prompt: checks.COUNT, maxOutputTokens: 4096, abortSignal: controller.signal, maxRetries: 0, onError,
    });
    let pieces = 0;
    for await (const _ of result.textStream) {
      if (++pieces > 1) continue;
      await checks.expectRunning();
      controller.abort();
    }
    expect(pieces > 0, true);
    return await checks.expectIdle();
  });
}

function onError({ error }) {
  throw error;
}
