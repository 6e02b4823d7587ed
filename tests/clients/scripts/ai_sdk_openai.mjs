// Vercel's AI SDK with @ai-sdk/openai: responses, its default.

import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import { checkProvider } from "./ai_sdk.mjs";
import * as checks from "./checks.mjs";

const real = createOpenAI({ baseURL: `${checks.REAL}/v1`, apiKey: "none" });
const talker = createOpenAI({ baseURL: `${checks.TALKER}/v1`, apiKey: "none" });
await checkProvider(real(checks.REAL_MODEL), talker(checks.TALKER_MODEL));

await checks.check("resume", async () => {
  const model = talker(checks.TALKER_MODEL);
  const first = await generateText({ model, prompt: checks.FIRST, maxRetries: 0 });
  const previousResponseId = first.finalStep.providerMetadata.openai.responseId;
  const second = await generateText({
    model, prompt: checks.SECOND, maxRetries: 0, providerOptions: { openai: { previousResponseId } },
  });
  checks.expect(second.text, checks.RECALLED);
});
