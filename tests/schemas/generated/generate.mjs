// Writes the schemas of JavaScript's generators to standard output, one JSON object a line: see README.md.

import { zodSchema } from "@ai-sdk/provider-utils";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { Type } from "@sinclair/typebox";
import { toJsonSchema } from "@valibot/to-json-schema";
import { type } from "arktype";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { createGenerator } from "ts-json-schema-generator";
import * as v from "valibot";
import { z as z3 } from "zod/v3";
import { z } from "zod";
import { zodToJsonSchema } from "zod-to-json-schema";

function write(name, by, schema, valid, invalid) {
  console.log(JSON.stringify({ name, by, schema, valid, invalid }));
}

const UUID = "5f0c1f6e-8a53-4c0f-9c0e-2f1d7a6b3c4d";
const AT = "2024-05-06T07:08:09Z";

// zod 3

const recipe3 = z3.object({
  name: z3.string().min(1).describe("What it is called."),
  minutes: z3.number().int().positive(),
  kind: z3.enum(["soup", "cake"]).default("soup"),
  ingredients: z3.array(z3.object({ name: z3.string(), amount: z3.string().nullable() })).min(1).max(30),
  source: z3.string().url().optional(),
  rating: z3.number().min(0).max(5).nullish(),
});
const RECIPE = { name: "a", minutes: 5, ingredients: [{ name: "salt", amount: null }] };
write(
  "recipe", "zod 3, AI SDK's zodSchema", await zodSchema(recipe3).jsonSchema,
  [RECIPE, { ...RECIPE, source: "https://example.org/", rating: 4.5 }, { ...RECIPE, rating: null }],
  [{ ...RECIPE, ingredients: [] }, { ...RECIPE, minutes: 0 }, { ...RECIPE, more: 1 }, { ...RECIPE, rating: 6 }],
);

const DISH = { name: "a", minutes: 5, kind: null, ingredients: RECIPE.ingredients };
const contact3 = z3.object({
  id: z3.string().uuid(),
  mail: z3.string().email(),
  born: z3.string().date(),
  seen: z3.string().datetime(),
  ip: z3.string().ip(),
  code: z3.string().regex(/^[a-z]+-\d{2}$/),
  greeting: z3.string().startsWith("Hi").endsWith("!"),
  blob: z3.string().base64(),
  cuid: z3.string().cuid(),
  at: z3.date(),
});
const CONTACT = {
  id: UUID, mail: "ann@example.org", born: "1990-02-28", seen: AT, ip: "10.0.0.1", code: "ab-12",
  greeting: "Hi!", blob: "YQ==", cuid: "cjld2cjxh0000qzrmn831i7rn", at: AT,
};
write(
  "contact", "zod 3, zod-to-json-schema", zodToJsonSchema(contact3),
  [{ ...CONTACT, greeting: "Hi, Ann!" }],
  [{ ...CONTACT, code: "ab-1" }, { ...CONTACT, born: "1990-13-01" }],
);

const settings3 = z3.object({
  headers: z3.record(z3.string()),
  limits: z3.record(z3.enum(["cpu", "memory"]), z3.number()),
  names: z3.record(z3.string().min(2), z3.boolean()),
  pair: z3.tuple([z3.string(), z3.number()]),
  rest: z3.tuple([z3.string()]).rest(z3.number()),
  seen: z3.map(z3.string(), z3.number()),
});
const SETTINGS = { headers: { a: "b" }, limits: { cpu: 1 }, names: { ab: true }, pair: ["a", 1], rest: ["a", 1, 2], seen: [["a", 1]] };
write(
  "settings", "zod 3, zod-to-json-schema", zodToJsonSchema(settings3),
  [SETTINGS, { ...SETTINGS, limits: {}, names: {} }],
  [{ ...SETTINGS, limits: { disk: 1 } }, { ...SETTINGS, limits: { cpu: "a" } }, { ...SETTINGS, names: { a: true } }],
);

const maps3 = settings3.omit({ limits: true, names: true });
write(
  "maps and tuples", "zod 3, zod-to-json-schema", zodToJsonSchema(maps3),
  [{ headers: { a: "b" }, pair: ["a", 1], rest: ["a", 1, 2], seen: [["a", 1]] }, { headers: {}, pair: ["a", 1], rest: ["a"], seen: [] }],
  [
    { headers: { a: 1 }, pair: ["a", 1], rest: ["a"], seen: [] },
    { headers: {}, pair: ["a"], rest: ["a"], seen: [] },
    { headers: {}, pair: ["a", 1, 2], rest: ["a"], seen: [] },
    { headers: {}, pair: ["a", 1], rest: ["a", "b"], seen: [] },
  ],
);

write(
  "sets", "zod 3, zod-to-json-schema", zodToJsonSchema(z3.object({ tags: z3.set(z3.string()).min(1) })), [], [],
);

const shape3 = z3.discriminatedUnion("type", [
  z3.object({ type: z3.literal("circle"), radius: z3.number().positive() }),
  z3.object({ type: z3.literal("square"), side: z3.number().gte(0).multipleOf(0.5) }).strict(),
  z3.object({ type: z3.literal("path"), points: z3.array(z3.tuple([z3.number(), z3.number()])) }).passthrough(),
]);
write(
  "shapes", "zod 3, a union at the root", zodToJsonSchema(shape3),
  [{ type: "circle", radius: 0.1 }, { type: "square", side: 1.5 }, { type: "path", points: [[1, 2]], more: true }],
  [{ type: "circle", side: 1 }, { type: "square", side: 0.3 }, { type: "path", points: [[1]] }, { type: "line" }],
);

const category3 = z3.lazy(() => z3.object({ name: z3.string(), children: z3.array(category3) }));
write(
  "category", "zod 3, recursive, with a name", zodToJsonSchema(category3, "category"),
  [{ name: "a", children: [{ name: "b", children: [] }] }], [{ name: "a", children: [{ name: "b" }] }],
);

const both3 = z3.intersection(
  z3.object({ a: z3.string(), shared: z3.number().min(1) }),
  z3.object({ b: z3.string().optional(), shared: z3.number().max(9) }),
);
write(
  "intersection", "zod 3, zod-to-json-schema", zodToJsonSchema(both3),
  [{ a: "x", shared: 5 }, { a: "x", shared: 5, b: "y" }], [{ a: "x", shared: 10 }, { shared: 5 }, { a: "x", shared: 5, b: 1 }],
);

write(
  "nullable", "zod 3, for OpenAPI 3.0", zodToJsonSchema(recipe3.extend({ lead: contact3.pick({ id: true }).nullable(), kind: z3.enum(["a"]).nullable(), above: z3.number().gt(3).nullable() }), { target: "openApi3" }),
  [{ ...DISH, lead: null, above: null }, { ...DISH, kind: "a", lead: { id: UUID }, above: 3.5 }],
  [{ ...DISH, lead: 1, above: null }, { ...DISH, kind: "b", lead: null, above: 3.5 }, { ...DISH, lead: null, above: 3 }],
);

// openai-node

const steps3 = z3.object({
  steps: z3.array(z3.object({ explanation: z3.string(), output: z3.string() })),
  answer: z3.string().nullable(),
  sure: z3.union([z3.literal("yes"), z3.literal("no"), z3.number()]),
});
const STEP = { explanation: "a", output: "b" };
write(
  "steps", "openai-node, zodResponseFormat of zod 3", zodResponseFormat(steps3, "steps").json_schema.schema,
  [{ steps: [STEP], answer: null, sure: "yes" }, { steps: [], answer: "x", sure: 0.5 }],
  [{ steps: [{}], answer: null, sure: "yes" }, { steps: [], answer: "x", sure: "maybe" }],
);
const node3 = z3.object({ value: z3.string(), next: z3.lazy(() => node3.nullable()) });
write(
  "list", "openai-node, zodResponseFormat of a recursive zod 3", zodResponseFormat(node3, "node").json_schema.schema,
  [{ value: "a", next: null }, { value: "a", next: { value: "b", next: null } }], [{ value: "a" }, { value: "a", next: { value: 1, next: null } }],
);
const query = z.object({
  table: z.enum(["orders", "customers"]),
  columns: z.array(z.string()),
  where: z.array(z.object({ column: z.string(), operator: z.enum(["=", ">", "!="]), value: z.union([z.string(), z.number(), z.object({ column: z.string() })]) })),
  order: z.nullable(z.literal(["asc", "desc"])),
});
write(
  "query", "openai-node, zodFunction of zod 4", zodFunction({ name: "query", parameters: query }).function.parameters,
  [{ table: "orders", columns: ["a"], where: [{ column: "a", operator: "!=", value: { column: "b" } }], order: "asc" }, { table: "orders", columns: [], where: [], order: null }],
  [{ table: "orders", columns: ["a"], where: [{ column: "a", operator: "<", value: 1 }], order: "asc" }, { table: "users", columns: [], where: [], order: null }],
);

// zod 4

const account = z.object({
  id: z.uuid(),
  email: z.email(),
  site: z.url().optional(),
  created: z.iso.datetime(),
  day: z.iso.date(),
  hour: z.iso.time(),
  period: z.iso.duration(),
  v4: z.ipv4(),
  range: z.cidrv4(),
  age: z.int().min(0),
  plan: z.enum({ Free: "free", Paid: "paid" }).default("free"),
  phone: z.e164().nullable(),
  key: z.base64url(),
  token: z.nanoid().optional(),
});
const ACCOUNT = {
  id: UUID, email: "ann@example.org", created: AT, day: "2024-02-29", hour: "07:08:09", period: "P1DT2H", v4: "10.0.0.1",
  range: "10.0.0.0/8", age: 30, plan: "paid", phone: "+4917012345678", key: "YQ",
};
for (const target of ["draft-2020-12", "draft-7", "openapi-3.0"]) {
  const schema = z.toJSONSchema(account, { target });
  write(
    `account ${target}`, "zod 4, toJSONSchema", schema,
    [ACCOUNT, { ...ACCOUNT, phone: null }],
    [{ ...ACCOUNT, age: 1.5 }, { ...ACCOUNT, phone: "4917" }, { ...ACCOUNT, day: "2024-13-01" }, { ...ACCOUNT, range: "10.0.0.0" }],
  );
}

write(
  "account with emoji", "zod 4, toJSONSchema", z.toJSONSchema(account.extend({ emoji: z.emoji() })), [], [],
);

const numbers = z.object({
  double: z.float64(),
  whole: z.int32(),
  unsigned: z.uint32(),
  safe: z.int(),
  below: z.number().lt(1).gt(-1),
  step: z.number().multipleOf(0.1),
  five: z.int().multipleOf(5).nonnegative().max(100),
});
write(
  "numbers", "zod 4, toJSONSchema", z.toJSONSchema(numbers),
  [{ double: -2.5, whole: -3, unsigned: 4294967295, safe: 9007199254740991, below: 0.5, step: 0.3, five: 95 }],
  [
    { double: -2.5, whole: 2147483648, unsigned: 1, safe: 1, below: 0.5, step: 0.3, five: 95 },
    { double: -2.5, whole: 1, unsigned: -1, safe: 1, below: 0.5, step: 0.3, five: 95 },
    { double: -2.5, whole: 1, unsigned: 1, safe: 9007199254740992, below: 0.5, step: 0.3, five: 95 },
    { double: -2.5, whole: 1, unsigned: 1, safe: 1, below: 1, step: 0.3, five: 95 },
    { double: -2.5, whole: 1, unsigned: 1, safe: 1, below: 0, step: 0.35, five: 95 },
  ],
);

write("float", "zod 4, toJSONSchema", z.toJSONSchema(z.object({ float: z.float32() })), [], []);

const odd = z.object({
  big: z.bigint(),
  when: z.date(),
  nothing: z.undefined(),
  any: z.any(),
  unknown: z.unknown().optional(),
  never: z.never().optional(),
  nan: z.nan().optional(),
});
write(
  "unrepresentable", "zod 4, toJSONSchema, unrepresentable: any", z.toJSONSchema(odd, { unrepresentable: "any" }),
  [{ big: 1, when: AT, nothing: null, any: 1 }], [{ big: 1, when: AT, nothing: null, any: 1, never: 1 }],
);
write(
  "anything", "zod 4, toJSONSchema, unrepresentable: any", z.toJSONSchema(odd.omit({ never: true }), { unrepresentable: "any" }),
  [{ big: 1, when: AT, nothing: null, any: [1, { a: null }] }], [{ when: AT, nothing: null, any: 1 }],
);

const scores = z.object({
  byName: z.record(z.string(), z.number()),
  byCode: z.partialRecord(z.enum(["a", "b"]), z.number()),
});
write(
  "map by enum", "zod 4, toJSONSchema", z.toJSONSchema(scores),
  [{ byName: { x: 1 }, byCode: { a: 1 } }, { byName: {}, byCode: {} }], [{ byName: {}, byCode: { c: 1 } }, { byName: {}, byCode: { a: "x" } }],
);
write(
  "whole map by enum", "zod 4, toJSONSchema", z.toJSONSchema(z.object({ limits: z.record(z.enum(["cpu", "memory"]), z.number()) })),
  [{ limits: { cpu: 1, memory: 2 } }], [{ limits: { cpu: 1 } }, { limits: { cpu: 1, memory: 2, disk: 3 } }, { limits: { cpu: 1, memory: "a" } }],
);
write(
  "map by pattern", "zod 4, toJSONSchema", z.toJSONSchema(z.object({ headers: z.record(z.string().regex(/^x-[a-z]+$/), z.string()) })),
  [{ headers: { "x-a": "b" } }, { headers: {} }], [{ headers: { a: "b" } }, { headers: { "x-a": 1 } }],
);

const comment = z.object({
  text: z.string(),
  get replies() {
    return z.array(comment);
  },
  author: z.object({ name: z.string() }).meta({ id: "Author", title: "An author", examples: [{ name: "Ann" }] }),
});
write(
  "comment", "zod 4, recursive, with an id in $defs", z.toJSONSchema(comment, { reused: "ref" }),
  [{ text: "a", replies: [{ text: "b", replies: [], author: { name: "B" } }], author: { name: "A" } }],
  [{ text: "a", replies: [{ text: "b", replies: [] }], author: { name: "A" } }],
);
const event = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("click"), at: z.tuple([z.int(), z.int()]) }),
  z.looseObject({ type: z.literal(["key", "paste"]), text: z.string().max(3).readonly() }),
  z.object({ type: z.null(), rest: z.tuple([z.string()], z.boolean()) }).catchall(z.number()),
]);
write(
  "events", "zod 4, a union at the root", z.toJSONSchema(event),
  [{ type: "click", at: [1, 2] }, { type: "paste", text: "abc", more: 1 }, { type: null, rest: ["a", true], more: 1 }],
  [{ type: "click", at: [1] }, { type: "click", at: [1, 2], more: 1 }, { type: "key", text: "abcd" }, { type: null, rest: ["a"], more: "x" }],
);
write(
  "both", "zod 4, an intersection", z.toJSONSchema(z.intersection(z.object({ a: z.string() }), z.object({ b: z.int().max(9) })), { io: "input" }),
  [{ a: "x", b: 1 }], [{ a: "x", b: 10 }, { a: "x" }],
);
write(
  "exclusive", "zod 4, xor", z.toJSONSchema(z.object({ contact: z.xor([z.object({ mail: z.string() }), z.object({ phone: z.string() })]) })),
  [{ contact: { mail: "a" } }, { contact: { phone: "1" } }], [{ contact: {} }, { contact: { mail: "a", phone: "1" } }],
);
write(
  "file", "zod 4, file and templates", z.toJSONSchema(z.object({ file: z.file().min(1).max(9).mime("image/png"), size: z.templateLiteral([z.number(), z.enum(["px", "em"])]), path: z.string().includes("/").lowercase() })),
  [{ file: "a", size: "3px", path: "a/b" }], [{ file: "a", size: "px", path: "a/b" }, { file: "a", size: "3px", path: "ab" }],
);

// TypeBox

const product = Type.Object({
  id: Type.Readonly(Type.Integer({ minimum: 1 })),
  name: Type.String({ minLength: 1, maxLength: 40, $comment: "shown" }),
  price: Type.Number({ exclusiveMinimum: 0 }),
  state: Type.Union([Type.Literal("new"), Type.Literal("used"), Type.Null()], { default: "new" }),
  size: Type.Optional(Type.Tuple([Type.Number(), Type.Number()])),
  tags: Type.Array(Type.String(), { uniqueItems: false, maxItems: 3 }),
  stock: Type.Record(Type.String({ pattern: "^[a-z]+$" }), Type.Integer()),
  photo: Type.Optional(Type.Uint8Array()),
  made: Type.Optional(Type.Date()),
}, { additionalProperties: false, $id: "product" });
write("product", "TypeBox, with types of JavaScript", product, [], []);
const PRODUCT = { id: 1, name: "a", price: 0.5, state: null, tags: [], stock: { a: 1 } };
write(
  "product of JSON", "TypeBox", Type.Omit(product, ["photo", "made"], { additionalProperties: false, $id: "product" }),
  [PRODUCT, { ...PRODUCT, state: "used" }], [{ ...PRODUCT, price: 0 }, { ...PRODUCT, more: 1 }, { ...PRODUCT, tags: ["a", "b", "c", "d"] }, { ...PRODUCT, stock: { a: 0.5 } }],
);
write(
  "menu", "TypeBox, recursive", Type.Recursive((self) => Type.Object({ label: Type.String(), items: Type.Array(self) }), { $id: "menu" }),
  [{ label: "a", items: [{ label: "b", items: [] }] }], [{ label: "a", items: [{}] }],
);
write(
  "person", "TypeBox, Intersect and Composite",
  Type.Intersect([Type.Object({ a: Type.String() }), Type.Composite([Type.Object({ b: Type.Number() }), Type.Object({ c: Type.Boolean() })])]),
  [{ a: "x", b: 1, c: true }], [{ a: "x", b: 1 }],
);
write(
  "strict person", "TypeBox, Intersect, unevaluatedProperties",
  Type.Intersect([Type.Object({ a: Type.String() }), Type.Object({ b: Type.Number() })], { unevaluatedProperties: false }),
  [{ a: "x", b: 1 }], [{ a: "x", b: 1, c: 2 }, { a: "x" }],
);
write(
  "not", "TypeBox, Not", Type.Object({ name: Type.Intersect([Type.String(), Type.Not(Type.Literal("root"))]) }), [], [],
);

write("team", "TypeBox, an array that contains", Type.Object({ members: Type.Array(Type.String(), { contains: Type.Literal("lead"), minContains: 1 }) }), [], []);

// valibot

const job = v.object({
  title: v.pipe(v.string(), v.minLength(3), v.title("A title"), v.description("Of the job.")),
  salary: v.pipe(v.number(), v.integer(), v.minValue(0), v.multipleOf(100)),
  level: v.picklist(["junior", "senior"]),
  remote: v.optional(v.boolean(), false),
  start: v.nullable(v.pipe(v.string(), v.isoDate())),
  apply: v.variant("by", [v.object({ by: v.literal("mail"), to: v.pipe(v.string(), v.email()) }), v.object({ by: v.literal("web"), url: v.pipe(v.string(), v.url()) })]),
  more: v.record(v.string(), v.union([v.string(), v.number()])),
  place: v.strictTuple([v.number(), v.number()]),
});
const JOB = { title: "abc", salary: 4200, level: "junior", start: "2024-05-06", apply: { by: "web", url: "https://example.org/" }, more: {}, place: [1, 2] };
write(
  "job", "valibot", toJsonSchema(job),
  [JOB, { ...JOB, start: null, more: { a: 1, b: "c" } }], [{ ...JOB, salary: 4250 }, { ...JOB, level: "boss" }, { ...JOB, place: [1] }, { ...JOB, apply: { by: "web" } }],
);
write(
  "strict job", "valibot, strictObject and objectWithRest",
  toJsonSchema(v.strictObject({ a: v.exactOptional(v.string()), rest: v.objectWithRest({ b: v.number() }, v.boolean()), list: v.tupleWithRest([v.string()], v.number()) })),
  [{ rest: { b: 1 }, list: ["a"] }, { a: "x", rest: { b: 1, c: true }, list: ["a", 1] }], [{ rest: { b: 1 }, list: ["a"], more: 1 }, { rest: { b: 1, c: 2 }, list: ["a"] }, { rest: { b: 1 }, list: ["a", "b"] }],
);

// arktype

write(
  "device", "arktype", type({ name: "1<=string<=20", "model?": "string", ip: "string.ip.v4", ports: "(1<=number.integer<=65535)[]", state: "'on' | 'off' | null" }).toJsonSchema(),
  [{ ip: "10.0.0.1", name: "a", ports: [80], state: null }], [{ ip: "10.0.0.1", name: "", ports: [80], state: "on" }, { ip: "10.0.0.1", name: "a", ports: [0], state: "on" }, { ip: "10.0.0.1", name: "a", ports: [], state: "idle" }],
);

// TypeScript

write(
  "types", "ts-json-schema-generator", createGenerator({ path: new URL("types.ts", import.meta.url).pathname, type: "Deployment", skipTypeCheck: true }).createSchema("Deployment"),
  [{ name: "a", replicas: 1, env: {}, strategy: { kind: "rolling", surge: "25%" } }, { name: "a", replicas: 1, image: "x", labels: { a: "b" }, env: { A: 1 }, strategy: { kind: "recreate" }, owner: null }],
  [{ name: "a", replicas: 1.5, env: {}, strategy: { kind: "recreate" } }, { name: "a", replicas: 1, env: {}, strategy: { kind: "rolling" } }],
);

// MCP

const server = new McpServer({ name: "files", version: "1" });
const nothing = async () => ({ content: [] });
server.registerTool("edit", { inputSchema: { path: z.string(), edits: z.array(z.object({ oldText: z.string().describe("Text to look for."), newText: z.string() })), dryRun: z.boolean().default(false) } }, nothing);
server.registerTool("old", { inputSchema: { head: z3.number().optional(), sort: z3.enum(["name", "size"]).optional().default("name") } }, nothing);
server.registerTool("none", {}, nothing);
const client = new Client({ name: "client", version: "1" });
const [near, far] = InMemoryTransport.createLinkedPair();
await Promise.all([server.connect(near), client.connect(far)]);
const tools = Object.fromEntries((await client.listTools()).tools.map((one) => [one.name, one.inputSchema]));
write("edit", "MCP, a tool of the TypeScript SDK, zod 4", tools.edit, [{ path: "a", edits: [{ oldText: "b", newText: "c" }] }, { path: "a", edits: [], dryRun: true }], [{ path: "a" }, { path: "a", edits: [{ oldText: "b" }] }]);
write("list files", "MCP, a tool of the TypeScript SDK, zod 3", tools.old, [{}, { head: 1, sort: "size" }], [{ sort: "date" }, { head: "1" }]);
write("no parameters", "MCP, a tool of the TypeScript SDK", tools.none, [{}], [1]);
await client.close();
