// Vercel's AI SDK with @ai-sdk/anthropic: messages.

import { createAnthropic } from "@ai-sdk/anthropic";
import { checkProvider } from "./ai_sdk.mjs";
import * as checks from "./checks.mjs";

const provider = (url) => createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
// For models that it does not know it makes a tool of the schema, and this one's template takes none.
const providerOptions = { anthropic: { structuredOutputMode: "outputFormat" } };
const [real, talker] = [provider(checks.REAL)(checks.REAL_MODEL), provider(checks.TALKER)(checks.TALKER_MODEL)];
await checkProvider(real, talker, providerOptions);
