// How far log-probabilities in 8 bits are from those in float32 on one GGUF file: of qlora, and of llama.cpp, which multiplies
// quantized weights with activations in 8 bits.
//   node bench/peers/int8_spread.mjs QLORA MODEL.gguf TEXT
import {mkdtempSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {createContext, loadGguf, logprobs, programRunner, startLlama} from "../../tests/interop/llama_peer.mjs";

const kRow = 200;  // tokens
const [program, file, text] = process.argv.slice(2);
const qlora = programRunner(program);

const model = await loadGguf(await startLlama(), file);
const ids = model.tokenize(readFileSync(text, "utf8"));
const rows = [];
for (let i = 0; i + kRow <= ids.length; i += kRow) rows.push([...ids.slice(i, i + kRow)]);

const sequence = (await createContext(model, null)).getSequence();
const ofLlama = [];
for (const row of rows) ofLlama.push(...await logprobs(sequence, row));

const folder = mkdtempSync(join(tmpdir(), "spread-"));
const data = join(folder, "rows.jsonl");
writeFileSync(data, rows.map((row) => JSON.stringify({input_ids: row}) + "\n").join(""));
const ofQlora = (type) => JSON.parse(qlora("eval", file, data, "--json", "--per-token", "--max_length", String(kRow),
  "--compute_dtype", type)).logprobs.flat(Infinity);
const exact = ofQlora("float32");
const peers = {"qlora, bfloat16": ofQlora("bfloat16"), "qlora, int8": ofQlora("int8"), "llama.cpp": ofLlama};
rmSync(folder, {recursive: true});

console.log(`${exact.length} tokens; log-probability less that of qlora in float32: root mean square, mean`);
for (const [name, values] of Object.entries(peers)) {
  const differences = values.map((value, i) => value - exact[i]);
  const mean = (of) => differences.reduce((sum, d) => sum + of(d), 0) / differences.length;
  console.log(`${name}: ${Math.sqrt(mean((d) => d * d)).toFixed(4)}, ${mean((d) => d).toFixed(5)}`);
}
process.exit(0);
