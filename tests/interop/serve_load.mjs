// Loads a server with streaming clients, and prints what they got: tokens a second, and the time to the first token.
//
//   node tests/interop/serve_load.mjs --url http://127.0.0.1:8080 [--models base] [--clients 1,4,16] [--prompt 128] [--tokens 32]
//        [--requests 4]
//
// Each client sends a prompt of random token ids to /v1/completions, reads a stream of so many tokens, and asks again, as often as
// --requests says. Models, separated by commas, are asked in turn; llama-server takes an adapter as NAME={"lora": [...]}, fields of
// the request. It serves for both servers, one after the other on an idle machine. An answer that ends with an error counts by its
// pieces.
import {readOptions} from "./peer.mjs";
import {randomChoices} from "./random_texts.mjs";

const options = readOptions({models: "", clients: "1,4,16", prompt: "128", tokens: "32", requests: "4"}, ["url"],
  "serve_load.mjs --url URL [--models A,B] [--clients 1,4,16] [--prompt N] [--tokens N] [--requests N]");
const {below} = randomChoices(1);
const models = options.models.split(/,(?=[\w.-]+(?:=|,|$))/).map((text) => {
  const [name, fields] = text.split(/=(.*)/s);
  return {...(name && {model: name}), ...(fields && JSON.parse(fields))};
});

// The seconds to the first token of a stream, and the number of its tokens.
async function ask(model) {
  const prompt = Array.from({length: Number(options.prompt)}, () => 100 + below(10000));
  const begin = performance.now();
  const response = await fetch(`${options.url}/v1/completions`, {method: "POST", headers: {"content-type": "application/json"},
    body: JSON.stringify({...model, prompt, max_tokens: Number(options.tokens), ignore_eos: true, temperature: 0, stream: true,
      cache_prompt: false, stream_options: {include_usage: true}})});
  if (!response.ok) throw new Error(await response.text());
  let first = 0, pieces = 0, usage = 0, rest = "";
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((one) => one.startsWith("data: {"))) {
      const event = JSON.parse(line.slice(6));
      usage = event.usage?.completion_tokens ?? usage;
      if (!event.choices?.length) continue;
      if (pieces++ === 0) first = (performance.now() - begin) / 1000;
    }
  }
  const tokens = usage || pieces;
  return {first, tokens};
}

console.log("| clients | tokens/s | first token, median s |\n|---|---|---|");
for (const clients of options.clients.split(",").map(Number)) {
  const answers = [];
  const begin = performance.now();
  await Promise.all(Array.from({length: clients}, async (_, c) => {
    for (let r = 0; r < Number(options.requests); ++r) answers.push(await ask(models[(c + r) % models.length]));
  }));
  const seconds = (performance.now() - begin) / 1000;
  const firsts = answers.map((answer) => answer.first).sort((a, b) => a - b);
  const tokens = answers.reduce((sum, answer) => sum + answer.tokens, 0);
  console.log(`| ${clients} | ${(tokens / seconds).toFixed(1)} | ${firsts[firsts.length >> 1].toFixed(2)} |`);
}
