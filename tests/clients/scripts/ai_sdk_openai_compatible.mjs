// Vercel's AI SDK with @ai-sdk/openai-compatible: chat completions.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { checkProvider } from "./ai_sdk.mjs";
import * as checks from "./checks.mjs";

const provider = (url) =>
  createOpenAICompatible({
    name: "draftd", baseURL: `${url}/v1`, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true,
  });
await checkProvider(provider(checks.REAL)(checks.REAL_MODEL), provider(checks.TALKER)(checks.TALKER_MODEL));
