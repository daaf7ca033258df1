// Compares the records that qlora reads of random Parquet files with those that another reader finds in them.
//
//   node tests/interop/parquet_diff.mjs --qlora PROGRAM [--files 60] [--seed 1]
//
// The files are of two writers (parquet-wasm, which is arrow-rs, and hyparquet-writer): flat and nested columns with nulls,
// lists and structs of any depth, dictionaries, pages of both versions, small pages and row groups, all codecs. The rows that
// went in must come out of hyparquet, and out of qlora with its two rules: fields of structs in lists that are null are left
// out but for `content`, NaN and infinities are null. What qlora does not read (Brotli, LZ4) it must refuse by name.
import {execFileSync} from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import {load, readOptions, scratchFolder} from "./peer.mjs";
import {randomChoices} from "./random_texts.mjs";

const options = readOptions({files: "60", seed: "1"}, ["qlora"], "parquet_diff.mjs --qlora PROGRAM [--files N] [--seed N]");
const arrow = await load("apache-arrow");
const wasm = await load("parquet-wasm");
const {parquetReadObjects} = await load("hyparquet");
const {compressors} = await load("hyparquet-compressors");
const {parquetWriteBuffer} = await load("hyparquet-writer");
const folder = scratchFolder();
const model = path.join(import.meta.dirname, "../golden/llama-tiny");

const {below, pick} = randomChoices(Number(options.seed));
const chance = (n) => below(n) === 0;
const times = (n, f) => Array.from({length: n}, (_, i) => f(i));

const words = "rope mast keel tide Brest naïve Straße 東京 привет 🙂 e\u0301 \"so\" back\\slash tab\there line\nend \u0001".split(" ");
const text = () => times(below(6), () => pick(words)).join(" ");
// A type: how its values are made, and its type in Arrow.
const leaves = {
  text: {make: text, arrow: () => new arrow.Utf8()},
  same: {make: () => "same", arrow: () => new arrow.Utf8()},
  whole: {make: () => pick([0, -1, 2147483647, below(1000)]), arrow: () => new arrow.Int32()},
  wide: {make: () => pick([0n, -1n, 9007199254740993n, -9223372036854775808n, BigInt(below(1000))]), arrow: () => new arrow.Int64()},
  real: {make: () => pick([0.1, -1.5, 1e300, 5e-324, NaN, Infinity, below(1000) / 7]), arrow: () => new arrow.Float64()},
  flag: {make: () => chance(2), arrow: () => new arrow.Bool()},
};
const names = ["role", "content", "name", "tool_calls", "arguments", "id", "score"];

function randomType(depth) {
  const shape = depth > 0 ? below(4) : 0;
  if (shape === 2) {
    const item = randomType(depth - 1);
    return {
      make: () => times(pick([0, 1, 2, 3, 9]), () => (chance(8) ? null : item.make())),
      arrow: () => new arrow.List(new arrow.Field("element", item.arrow(), true)),
    };
  }
  if (shape === 3) {
    const fields = [...new Set(times(1 + below(4), () => pick(names)))].map((name) => [name, randomType(depth - 1)]);
    return {
      make: () => Object.fromEntries(fields.map(([name, type]) => [name, chance(4) ? null : type.make()])),
      arrow: () => new arrow.Struct(fields.map(([name, type]) => new arrow.Field(name, type.arrow(), true))),
    };
  }
  return leaves[pick(Object.keys(leaves))];
}

// Every record has a text, so that the file has a format.
function randomTable() {
  const columns = {text: leaves.text};
  for (let i = 1 + below(4); i > 0; --i) columns[`column ${i}`] = randomType(3);
  const rare = pick([2, 5, 1000]);  // how often a column is null
  const rows = times(1 + below(pick([3, 40, 400])), () => Object.fromEntries(Object.entries(columns).map(
    ([name, type]) => [name, name === "text" ? `row ${text()}` : chance(rare) ? null : type.make()])));
  return {columns, rows};
}

const codecs = ["UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "BROTLI", "LZ4_RAW"];
const refused = {BROTLI: "Brotli", LZ4_RAW: "LZ4"};

function writeByArrow({columns, rows}, codec) {
  const fields = Object.entries(columns).map(([name, type]) => new arrow.Field(name, type.arrow(), true));
  const vectors = fields.map((field) => arrow.vectorFromArray(rows.map((row) => row[field.name]), field.type));
  const schema = new arrow.Schema(fields);
  const data = arrow.makeData({type: new arrow.Struct(fields), length: rows.length, nullCount: 0,
    children: vectors.map((vector) => vector.data[0])});
  const table = new arrow.Table(schema, [new arrow.RecordBatch(schema, data)]);
  let builder = new wasm.WriterPropertiesBuilder().setCompression(wasm.Compression[codec])
    .setWriterVersion(pick([wasm.WriterVersion.V1, wasm.WriterVersion.V2])).setDictionaryEnabled(!chance(3));
  if (chance(2)) builder = builder.setDataPageSizeLimit(pick([64, 500, 5000])).setWriteBatchSize(pick([1, 7, 64]));
  if (chance(2)) builder = builder.setDictionaryPageSizeLimit(pick([50, 400]));
  if (chance(3)) builder = builder.setMaxRowGroupSize(pick([1, 10, 100]));
  return wasm.writeParquet(wasm.Table.fromIPCStream(arrow.tableToIPC(table, "stream")), builder.build());
}

// Its own compression is Snappy.
function writeByHyparquet({columns, rows}, codec) {
  const schemaOf = {text: "STRING", same: "STRING", whole: "INT32", wide: "INT64", real: "DOUBLE", flag: "BOOLEAN"};
  const columnData = Object.entries(columns).map(([name, type]) => ({
    name, data: rows.map((row) => row[name]), type: schemaOf[Object.keys(leaves).find((key) => leaves[key] === type)]}));
  return new Uint8Array(parquetWriteBuffer({columnData, codec, rowGroupSize: pick([1, 10, 100000]), pageSize: pick([64, 5000, 1048576])}));
}

// Values of any reader in one form, numbers as text.
function plain(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "bigint") return `#${value}`;
  if (typeof value === "number") return Number.isFinite(value) ? `#${value}` : null;
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, plain(one)]));
  }
  return value;
}

// What hyparquet-writer writes of a nested value: JSON, whose numbers are JavaScript's.
function asJson(value) {
  return JSON.parse(JSON.stringify(value, (_, one) => (typeof one === "bigint" ? Number(one) : one)));
}

// The rule of qlora for structs in lists. A number that is not finite was there.
function withoutNulls(value, original, inList = false) {
  if (Array.isArray(value)) return value.map((one, i) => withoutNulls(one, original[i], true));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value)
    .filter(([name]) => !inList || name === "content" || original[name] !== null)
    .map(([name, one]) => [name, withoutNulls(one, original[name], inList)]));
}

// Numbers that JavaScript would round keep their digits.
function parse(line) {
  const tokens = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
  return plain(JSON.parse(line.replace(tokens, (token) => (/^-?\d{16,}$/.test(token) ? `"#${token}"` : token))));
}

function readByQlora(file) {
  const prepared = fs.mkdtempSync(path.join(folder, "prepared-"));
  try {
    execFileSync(options.qlora, ["inspect", "--model", model, "--dataset", file, "--dataset-prepared-path", prepared,
      "--samples", "0", "--max_length", "100000"], {stdio: "pipe"});
  } catch (error) {
    return {error: `${error.stderr}${error.stdout}`};
  }
  const name = fs.readdirSync(prepared).find((one) => one.endsWith(".jsonl"));
  const lines = fs.readFileSync(path.join(prepared, name), "utf8").trimEnd().split("\n");
  fs.rmSync(prepared, {recursive: true});
  return {rows: lines.map(parse)};
}

async function readByPeer(bytes) {
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  try {
    return (await parquetReadObjects({file: buffer, compressors})).map(plain);
  } catch (error) {
    return [];
  }
}

// A row without the nulls of columns that have nothing else: hyparquet-writer gives some of them a type of bytes, which qlora
// leaves out.
const ofSomething = (rows) => (row) => Object.fromEntries(
  Object.entries(row).filter(([name, value]) => value !== null || rows.some((one) => one[name] !== null)));

// What became of a file; an object where it is wrong.
async function judge(table, writer, codec, bytes, file) {
  fs.writeFileSync(file, bytes);
  const isNested = (value) => value !== null && typeof value === "object";
  const rows = writer === "arrow-rs" ? table.rows : table.rows.map((row) => Object.fromEntries(
    Object.entries(row).map(([name, value]) => [name, isNested(value) ? asJson(value) : value])));
  const ours = readByQlora(file);
  if (refused[codec]) {
    return ours.error?.includes(refused[codec]) ? `${codec}: refused by name` : {wrong: `not refused by name: ${ours.error}`};
  }
  if (ours.error) return {wrong: ours.error};
  const put = rows.map(plain);
  // JSON stays as it is.
  const expected = writer === "arrow-rs" ? put.map((row, r) => withoutNulls(row, rows[r])) : put.map(ofSomething(put));
  const found = writer === "arrow-rs" ? ours.rows : ours.rows.map(ofSomething(put));
  const peer = await readByPeer(bytes);
  const agrees = JSON.stringify(peer) === JSON.stringify(put);
  for (let r = 0; r < Math.max(expected.length, found.length); ++r) {
    const [a, b, c] = [found[r], expected[r], peer[r]].map((row) => JSON.stringify(row));
    if (a !== b) return {wrong: `row ${r}: ${a}\n  expected ${b}\n  hyparquet ${agrees ? "agrees" : c}`};
  }
  return `${writer}: the rows that went in${agrees ? ", as hyparquet reads them" : "; hyparquet reads others, or none"}`;
}

const counts = new Map();
let wrong = 0;
for (let i = 0; i < Number(options.files); ++i) {
  const table = randomTable();
  const writer = chance(3) ? "hyparquet-writer" : "arrow-rs";
  const codec = writer === "arrow-rs" ? pick(codecs) : pick(["UNCOMPRESSED", "SNAPPY"]);
  let verdict;
  try {
    const bytes = writer === "arrow-rs" ? writeByArrow(table, codec) : writeByHyparquet(table, codec);
    verdict = await judge(table, writer, codec, bytes, path.join(folder, `${i}.parquet`));
  } catch (error) {
    verdict = `${writer} cannot write it: ${error}`;
  }
  if (verdict.wrong) {
    ++wrong;
    console.log(`${writer} ${codec}, file ${i} of seed ${options.seed}: ${verdict.wrong}`);
    verdict = "WRONG";
  }
  counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
}
for (const [what, number] of counts) console.log(`${String(number).padStart(6)} ${what}`);
process.exit(wrong > 0 ? 1 : 0);
