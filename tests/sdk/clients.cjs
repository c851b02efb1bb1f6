// The official JavaScript SDKs: reads cases from standard input, prints what each client made of its stream.
//
// This file must not know what is right. The folder of the packages is in LOOPWAY_NODE_MODULES.
const { createRequire } = require("node:module");
const path = require("node:path");

const load = createRequire(path.join(process.env.LOOPWAY_NODE_MODULES, "of-the-tests.js"));
const Anthropic = load("@anthropic-ai/sdk").default;
const OpenAI = load("openai").default;

const options = { maxRetries: 0, timeout: 20_000, logLevel: "off" };

// Each is told of the text so far through `seen`.
const readings = {
  messages: {
    async helper(client, body, seen) {
      const stream = client.messages.stream(body);
      stream.on("text", (piece) => seen(piece));
      return await stream.finalMessage();
    },
    async events(client, body, seen) {
      const kept = { text: "", ending: null, usage: {} };
      for await (const event of await client.messages.create({ ...body, stream: true })) {
        if (event.type === "content_block_delta" && event.delta.type === "text_delta") {
          kept.text += event.delta.text;
          seen(event.delta.text);
        } else if (event.type === "message_delta") {
          kept.ending = event.delta.stop_reason;
          kept.usage = event.usage;
        }
      }
      return kept;
    },
    async json(client, body) {
      return await client.messages.create(body);
    },
  },
  chat_completions: {
    async helper(client, body, seen) {
      const stream = client.chat.completions.stream(body);
      stream.on("content", (piece) => seen(piece));
      return await stream.finalChatCompletion();
    },
    async events(client, body, seen) {
      const kept = { text: "", ending: null, usage: {} };
      for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
        kept.usage = chunk.usage ?? kept.usage;
        for (const choice of chunk.choices) {
          kept.text += choice.delta.content ?? "";
          seen(choice.delta.content ?? "");
          kept.ending = choice.finish_reason ?? kept.ending;
        }
      }
      return kept;
    },
    async json(client, body) {
      const { stream_options, ...rest } = body;
      return await client.chat.completions.create(rest);
    },
  },
};

async function run({ dialect, reading, url, key, body }) {
  const client =
    dialect === "messages"
      ? new Anthropic({ baseURL: url, apiKey: key, ...options })
      : new OpenAI({ baseURL: `${url}/v1`, apiKey: key, ...options });
  let text = "";
  try {
    return { got: await readings[dialect][reading](client, body, (piece) => (text += piece)), text };
  } catch (error) {
    const api = error instanceof (dialect === "messages" ? Anthropic : OpenAI).APIError;
    return { raised: error.constructor.name, api, message: error.message, text };
  }
}

async function main() {
  let input = "";
  for await (const piece of process.stdin) input += piece;
  const made = {};
  await Promise.all(Object.entries(JSON.parse(input)).map(async ([name, one]) => (made[name] = await run(one))));
  process.stdout.write(JSON.stringify(made));
}

main();
