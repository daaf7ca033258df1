// Makes good/: Parquet files by five writers, the rows that they hold (as other readers read them), cases.json, layout.txt.
//   npm install --ignore-scripts && node make.mjs        (Node 20; half a minute)
// A file is kept only when at least two readers that share no code with its writer read the rows that went in.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { gzipSync } from 'node:zlib'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import duckdb from '@duckdb/node-api'
import * as A from 'apache-arrow'
import * as W from 'parquet-wasm/node'
import pl from 'nodejs-polars'
import pj from '@dsnp/parquetjs'
import { parquetReadObjects } from 'hyparquet'
import { compressors } from 'hyparquet-compressors'
import { parquetWriteBuffer } from 'hyparquet-writer'
import { layout } from './thrift.mjs'
import { handMade } from './build.mjs'

const here = dirname(fileURLToPath(import.meta.url)), good = join(here, 'good')
rmSync(good, { recursive: true, force: true }); mkdirSync(good)
const db = await (await duckdb.DuckDBInstance.create(':memory:', { threads: '1' })).connect()

// ---- Rows: plain objects, the same in every run ----

let state = 12345
const random = n => { state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff; return Math.floor(state / 65536) % n }
const words = 'the of model loss adapter rank gradient token batch learns slowly then faster because each weight moves a little naïve Straße 東京 привет 🙂 e\u0301 "quoted" back\\slash tab\there'.split(' ')
const sentence = n => Array.from({ length: n }, () => words[random(words.length)]).join(' ')
const table = (n, f) => Array.from({ length: n }, (_, i) => f(i))

const text = table(300, i => ({ text: i % 11 === 3 ? null : i % 13 === 5 ? '' : sentence(1 + random(12)), source: ['web', 'book', 'forum'][random(3)], one: 'same', id: i }))
text[20].text = 'line one\nline two\r\n\ttabbed'
const types = table(120, i => ({
  label: i % 7 === 2 ? null : random(2) === 1, i32: i % 5 === 1 ? null : [2147483647, -2147483648, 0, -1][i] ?? random(30000) - 15000,
  i64: i % 9 === 4 ? null : [9223372036854775807n, -9223372036854775808n, 9007199254740993n, -1n][i] ?? BigInt(random(30000)) * 1000003n,
  f32: i % 6 === 3 ? null : Math.fround((random(30000) - 15000) / 7), weight: i % 8 === 5 ? null : [1e300, 5e-324, 0.1, -1.5][i] ?? random(30000) / 3, s: i % 4 === 3 ? null : sentence(random(4)),
}))
const turn = (role, content) => ({ role, content })
const messages = table(200, i => ({
  id: i,
  messages: i % 17 === 3 ? null : i % 17 === 5 ? [] : i % 17 === 7 ? [turn('user', null)] : i % 17 === 9 ? [turn(null, null), turn('assistant', '')]
    : [...(i % 3 ? [] : [turn('system', 'Be brief.')]), ...table(1 + random(3), () => [turn('user', sentence(2 + random(6))), turn('assistant', sentence(2 + random(9)))]).flat()],
}))
const nullTurns = messages.map((r, i) => i % 17 === 11 ? { ...r, messages: [null, turn('user', 'after a null element'), null] } : r)
const ids = table(150, i => { const n = [0, 1, 7, 8, 9][i] ?? random(20); const t = table(n, () => random(30000)); return i % 19 === 6 ? { input_ids: null, labels: null } : { input_ids: t, labels: t.map((x, k) => k < n / 2 ? -100 : x) } })
const preference = table(80, i => ({
  prompt: sentence(3 + random(5)), chosen: [turn('user', 'q' + i), turn('assistant', sentence(5))], rejected: i % 10 === 9 ? null : [turn('user', 'q' + i), turn('assistant', sentence(4))],
  score_chosen: random(100) / 10, score_rejected: i % 10 === 9 ? null : random(100) / 10, label: i % 2 === 0,
}))
const alpaca = table(90, i => ({ instruction: sentence(4), input: i % 3 ? '' : i % 2 ? sentence(3) : null, output: sentence(8) }))
const long = table(24, i => ({ text: i % 6 === 1 ? null : sentence([3, 0, 400, 1, 700, 90][i % 6]), id: i }))
const call = i => ({ id: 'call_' + i, function: { name: i % 2 ? 'lookup' : 'add', arguments: `{"a": ${i}}` } })
const deep = table(60, i => ({
  messages: i % 9 === 4 ? null : [
    { role: 'user', content: sentence(3), tool_calls: null }, { role: 'assistant', content: null, tool_calls: i % 4 === 0 ? [] : table(1 + i % 3, k => call(i + k)) },
    { role: 'tool', content: String(i), tool_calls: null }, ...(i % 5 ? [] : [{ role: 'assistant', content: 'done', tool_calls: [{ id: 'x', function: null }] }])],
  tools: i % 2 ? '[{"type":"function"}]' : null,
}))
const nestedIds = table(40, i => ({ turns: i % 7 === 2 ? null : table(i % 4, k => k === 2 ? null : table((i + k) % 3, j => i * 10 + j)) }))
const sharegpt = table(60, i => ({ conversations: table(2 + i % 3, k => ({ from: k % 2 ? 'gpt' : 'human', value: sentence(4) })), system: i % 4 ? null : 'sys', weight: i / 8 }))
const numbers = table(5000, i => ({ n: (i * 7919) % 4999, run: Math.floor(i / 700) }))
const steps = table(1000, i => ({ id: i * 3 - 500, wild: BigInt(random(30000)) * (i % 2 ? -1n : 1n) * 4398046511104n, name: `user/${String(1000 + i).slice(0, 3)}/file-${i}`, x: i / 16 }))
const kinds = table(30, i => ({ text: i % 5 ? sentence(2) : null, empty: null, kind: ['a', 'b', 'c'][i % 3] }))
const features = JSON.stringify({ info: { features: { text: { dtype: 'string', _type: 'Value' }, source: { dtype: 'string', _type: 'Value' }, one: { dtype: 'string', _type: 'Value' }, id: { dtype: 'int64', _type: 'Value' } } } })

// ---- Readers: file -> plain rows; structs in the order of the schema ----

const numeric = v => typeof v === 'bigint' && v >= -9007199254740991n && v <= 9007199254740991n ? Number(v) : v
function plainDuck(v) {
  if (v === null || v === undefined || typeof v !== 'object') return numeric(v) ?? null
  if (Array.isArray(v)) return v.map(plainDuck)
  if (v.items) return [...v.items].map(plainDuck)
  if (Array.isArray(v.entries)) return v.entries.map(e => ({ key: plainDuck(e.key), value: plainDuck(e.value) })) // map
  if (v.entries) return Object.fromEntries(Object.entries(v.entries).map(([k, x]) => [k, plainDuck(x)]))
  return String(v)
}
function plainArrow(v, t) {
  if (v === null || v === undefined) return null
  if (A.DataType.isList(t) || A.DataType.isFixedSizeList(t) || v instanceof A.Vector) return [...v].map(x => plainArrow(x, t.children[0].type))
  if (A.DataType.isMap(t)) return [...v].map(([k, x]) => ({ key: plainArrow(k, t.keyType), value: plainArrow(x, t.valueType) }))
  if (A.DataType.isStruct(t)) return Object.fromEntries(t.children.map(f => [f.name, plainArrow(v[f.name], f.type)]))
  return numeric(v)
}
function plainJs(v) {
  if (v === null || v === undefined) return null
  if (typeof v !== 'object') return numeric(v)
  if (typeof v.toArray === 'function' && v.dtype !== undefined) return [...v.toArray()].map(plainJs)
  if (Array.isArray(v) || ArrayBuffer.isView(v)) return [...v].map(plainJs)
  return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, plainJs(x)]))
}
const readers = {
  duckdb: async f => (await db.runAndReadAll(`FROM read_parquet('${f}')`)).getRowObjects().map(r => Object.fromEntries(Object.entries(r).map(([k, v]) => [k, plainDuck(v)]))),
  'arrow-rs': async f => {
    const t = A.tableFromIPC(W.readParquet(readFileSync(f)).intoIPCStream())
    return [...t].map(r => Object.fromEntries(t.schema.fields.map(x => [x.name, plainArrow(r[x.name], x.type)])))
  },
  hyparquet: async f => { const b = readFileSync(f); return (await parquetReadObjects({ file: b.buffer.slice(b.byteOffset, b.byteOffset + b.length), compressors })).map(plainJs) },
  polars: async f => pl.readParquet(readFileSync(f)).toRecords().map(plainJs),
}
const toJson = v => typeof v === 'bigint' ? v.toString() : v === null || v === undefined ? 'null' : Array.isArray(v) ? '[' + v.map(toJson).join(', ') + ']'
  : typeof v === 'object' ? '{' + Object.entries(v).map(([k, x]) => JSON.stringify(k) + ': ' + toJson(x)).join(', ') + '}' : JSON.stringify(v)
// For comparing readers: fields that are null may be left out of a struct, JSON columns may come parsed.
const essence = v => Array.isArray(v) ? v.map(essence) : v && typeof v === 'object' ? Object.fromEntries(Object.entries(v).filter(([, x]) => x !== null && x !== undefined).sort(([a], [b]) => a < b ? -1 : 1).map(([k, x]) => [k, essence(x)])) : numeric(v)
const canonical = rows => rows.map(r => toJson(essence(r))).join('\n')

// ---- One file ----

const cases = [], layouts = [], expectedNames = new Map()
const family = { duckdb: ['duckdb'], 'arrow-rs': ['arrow-rs'], 'hyparquet-writer': ['hyparquet'], polars: ['polars', 'arrow-rs'], parquetjs: [], hand: [] }

// options: rows (what went in, null when `columns` of another kind cannot be told as JSON), only (columns to compare), json (columns of JSON text), note
async function keep(name, writer, bytes, { rows, only, json = [], note = '' }) {
  const file = join(good, name + '.parquet')
  mkdirSync(dirname(file), { recursive: true }); writeFileSync(file, bytes)
  const pick = r => only ? Object.fromEntries(only.map(k => [k, r[k]])) : r
  const parse = r => { for (const k of json) if (typeof r[k] === 'string') r = { ...r, [k]: JSON.parse(r[k]) }; return r }
  const went = canonical(rows.map(pick).map(parse))
  const agree = [], differ = {}; let expected
  for (const [who, read] of Object.entries(readers)) {
    if (family[writer].includes(who)) continue
    try {
      const got = (await read(file)).map(pick)
      if (canonical(got.map(parse)) === went) { agree.push(who); if (!expected || who === 'duckdb') expected = got.map(r => toJson(r)).join('\n') + (got.length ? '\n' : '') }
      else differ[who] = 'other rows'
    } catch (e) { differ[who] = String(e.message ?? e).split('\n')[0].slice(0, 100) }
  }
  if (agree.length < 2) throw new Error(`${name}: only ${agree} read what was written; ${JSON.stringify(differ)}`)
  let jsonl = expectedNames.get(expected)
  if (jsonl === undefined) { jsonl = name + '.jsonl'; expectedNames.set(expected, jsonl); writeFileSync(join(good, jsonl), expected) }
  cases.push({ file: name + '.parquet', expected: jsonl, rows: rows.length, writer, agree, ...(Object.keys(differ).length ? { differ } : {}), ...(only ? { columns: only } : {}), ...(note ? { note } : {}) })
  layouts.push(`${name}.parquet\n${layout(Buffer.from(bytes))}\n`)
  console.log(name, bytes.length, agree.join(' '), Object.keys(differ).length ? JSON.stringify(differ) : '')
}

// ---- DuckDB ----

const scratch = join(here, 'scratch.tmp')
async function duck(name, rows, columns, options = '', more = {}, select = '*') {
  writeFileSync(scratch, rows.map(toJson).join('\n') + '\n')
  const spec = '{' + Object.entries(columns).map(([k, t]) => `${k}: '${t}'`).join(', ') + '}'
  const from = rows.length ? `read_json('${scratch}', format = 'newline_delimited', columns = ${spec})` : `(SELECT ${Object.entries(columns).map(([k, t]) => `NULL::${t} AS ${k}`).join(', ')} LIMIT 0)`
  await db.run(`COPY (SELECT ${select} FROM ${from}) TO '${scratch}.parquet' (FORMAT parquet${options ? ', ' + options : ''})`)
  const bytes = readFileSync(scratch + '.parquet')
  rmSync(scratch); rmSync(scratch + '.parquet')
  await keep(name, 'duckdb', bytes, { rows, ...more })
}
const S = 'VARCHAR', MSG = 'STRUCT(role VARCHAR, content VARCHAR)[]'
const dText = { text: S, source: S, one: S, id: 'BIGINT' }, dTypes = { label: 'BOOLEAN', i32: 'INTEGER', i64: 'BIGINT', f32: 'FLOAT', weight: 'DOUBLE', s: S }
await duck('duckdb-text', text, dText, `KV_METADATA {huggingface: '${features}'}`, { note: 'defaults: v1, Snappy, PLAIN_DICTIONARY, bloom filters; key huggingface' })
await duck('duckdb-text-v2', text, dText, 'PARQUET_VERSION V2, COMPRESSION zstd', { note: 'DuckDB "V2": v1 pages with DELTA encodings' })
for (const c of ['uncompressed', 'snappy', 'gzip', 'zstd', 'brotli', 'lz4_raw']) await duck('duckdb-types-' + c.replace('_', '-'), types, dTypes, `COMPRESSION ${c}`)
await duck('duckdb-types-v2', types, dTypes, 'PARQUET_VERSION V2, COMPRESSION zstd')
await duck('duckdb-messages', messages, { id: 'INTEGER', messages: MSG }, 'COMPRESSION zstd')
await duck('duckdb-messages-null-turns', nullTurns, { id: 'INTEGER', messages: MSG }, 'PARQUET_VERSION V2')
await duck('duckdb-input-ids', ids, { input_ids: 'INTEGER[]', labels: 'BIGINT[]' })
await duck('duckdb-input-ids-v2', ids, { input_ids: 'INTEGER[]', labels: 'BIGINT[]' }, 'PARQUET_VERSION V2, COMPRESSION zstd')
await duck('duckdb-deep', deep, { messages: 'STRUCT(role VARCHAR, content VARCHAR, tool_calls STRUCT(id VARCHAR, function STRUCT(name VARCHAR, arguments VARCHAR))[])[]', tools: S })
await duck('duckdb-groups', numbers, { n: 'INTEGER', run: 'INTEGER' }, 'ROW_GROUP_SIZE 2048, COMPRESSION zstd', { note: 'row groups of 2048, 2048, 904' })
await duck('duckdb-steps-v2', steps, { id: 'BIGINT', wild: 'BIGINT', name: S, x: 'DOUBLE' }, 'PARQUET_VERSION V2, COMPRESSION zstd', { note: 'DELTA_BINARY_PACKED with wide and narrow deltas' })
await duck('duckdb-no-rows', [], dText)
await duck('duckdb-one-row', text.slice(0, 1), dText)
for (const k of [0, 1, 2]) await duck(`shards/train-0000${k}-of-00003`, alpaca.slice(k * 30, k * 30 + 30), { instruction: S, input: S, output: S })
await duck('duckdb-other-columns', kinds.map(({ text }) => ({ text })), { text: S }, '', { only: ['text'], note: 'columns that no trainer reads beside text: decimal, times, uuid, blob, map, unsigned, enum' },
  `text, 1.25::DECIMAL(9,2) AS dec, 1.5::DECIMAL(38,3) AS big_dec, DATE '2024-02-29' AS day, TIMESTAMP '2024-02-29 12:00:00' AS at, TIME '01:02:03' AS clock, '00000000-0000-4000-8000-000000000001'::UUID AS uuid, 'ab'::BLOB AS image, map {'a': 1, 'b': NULL} AS attributes, 200::UTINYINT AS u8, 4000000000::UINTEGER AS u32, 18446744073709551615::UBIGINT AS u64, 'x'::ENUM('x', 'y') AS kind, {bytes: 'zz'::BLOB, path: 'a.png'} AS picture`)

// ---- arrow-rs through parquet-wasm ----

const field = (name, type, nullable = true) => new A.Field(name, type, nullable)
const list = (type, nullable = true, name = 'element') => new A.List(field(name, type, nullable))
const struct = fields => new A.Struct(Object.entries(fields).map(([k, t]) => field(k, t)))
const utf8 = new A.Utf8(), large = new A.LargeUtf8(), i32 = new A.Int32(), i64 = new A.Int64(), f64 = new A.Float64(), bool = new A.Bool()
const big = v => Array.isArray(v) ? v.map(big) : typeof v === 'number' ? BigInt(v) : v
const holds64 = t => A.DataType.isInt(t) ? t.bitWidth === 64 : A.DataType.isList(t) ? holds64(t.children[0].type) : false
async function rust(name, rows, columns, build = b => b, more = {}, keys) {
  const fields = Object.entries(columns).map(([k, t]) => t instanceof A.Field ? t : field(k, t))
  const vectors = Object.fromEntries(fields.map(f => [f.name, A.vectorFromArray(rows.map(r => holds64(f.type) ? big(r[f.name]) : r[f.name]), f.type)]))
  const schema = new A.Schema(fields, keys)
  const children = fields.map(f => vectors[f.name].data[0] ?? A.makeData({ type: f.type, length: 0 }))
  const batch = new A.RecordBatch(schema, A.makeData({ type: new A.Struct(fields), length: rows.length, nullCount: 0, children }))
  const t = W.Table.fromIPCStream(A.tableToIPC(new A.Table(schema, [batch]), 'stream'))
  await keep(name, 'arrow-rs', Buffer.from(W.writeParquet(t, build(new W.WriterPropertiesBuilder()).build())), { rows, ...more })
}
const { ZSTD, SNAPPY, GZIP, BROTLI, LZ4_RAW, UNCOMPRESSED } = W.Compression, { V1, V2 } = W.WriterVersion, E = W.Encoding
const aText = { text: utf8, source: utf8, one: utf8, id: i64 }, aTypes = { label: bool, i32, i64, f32: new A.Float32(), weight: f64, s: utf8 }, aMsg = list(struct({ role: utf8, content: utf8 }))
await rust('arrow-text', text, aText, b => b, { note: 'defaults of the writer: v1, dictionary, no compression; key huggingface' }, new Map([['huggingface', features]]))
await rust('arrow-fallback', text, aText, b => b.setDictionaryPageSizeLimit(1500).setDataPageSizeLimit(1200).setWriteBatchSize(32).setCompression(SNAPPY), { note: 'dictionary, then PLAIN in the same column chunk; many pages' })
await rust('arrow-fallback-v2', text, aText, b => b.setWriterVersion(V2).setDictionaryPageSizeLimit(1500).setDataPageSizeLimit(1200).setWriteBatchSize(32).setCompression(ZSTD), { note: 'dictionary, then DELTA_BYTE_ARRAY in the same column chunk; v2 pages' })
for (const [c, id] of Object.entries({ snappy: SNAPPY, gzip: GZIP, zstd: ZSTD, brotli: BROTLI, 'lz4-raw': LZ4_RAW })) {
  await rust('arrow-types-' + c, types, aTypes, b => b.setCompression(id))
  await rust('arrow-types-v2-' + c, types, aTypes, b => b.setCompression(id).setWriterVersion(V2).setDictionaryEnabled(c === 'gzip'))
}
await rust('arrow-types-split', types, aTypes, b => b.setCompression(SNAPPY).setDictionaryEnabled(false).setColumnEncoding('f32', E.BYTE_STREAM_SPLIT).setColumnEncoding('weight', E.BYTE_STREAM_SPLIT).setColumnEncoding('i32', E.DELTA_BINARY_PACKED).setColumnEncoding('i64', E.DELTA_BINARY_PACKED).setColumnEncoding('s', E.DELTA_LENGTH_BYTE_ARRAY).setColumnEncoding('label', E.RLE), { note: 'BYTE_STREAM_SPLIT, DELTA and RLE booleans in v1 pages' })
await rust('arrow-split-ints', numbers.slice(0, 200), { n: i32, run: i64 }, b => b.setDictionaryEnabled(false).setColumnEncoding('n', E.BYTE_STREAM_SPLIT).setColumnEncoding('run', E.BYTE_STREAM_SPLIT), { note: 'BYTE_STREAM_SPLIT of integers: DuckDB 1.5 does not read it' })
await rust('arrow-steps', steps, { id: i64, wild: i64, name: utf8, x: f64 }, b => b.setDictionaryEnabled(false).setCompression(ZSTD).setColumnEncoding('id', E.DELTA_BINARY_PACKED).setColumnEncoding('wild', E.DELTA_BINARY_PACKED).setColumnEncoding('name', E.DELTA_BYTE_ARRAY).setDataPageSizeLimit(2048).setWriteBatchSize(128), { note: 'DELTA_BINARY_PACKED and DELTA_BYTE_ARRAY over several pages' })
await rust('arrow-messages', nullTurns, { id: i32, messages: aMsg }, b => b.setCompression(SNAPPY).setMaxRowGroupSize(70).setDataPageSizeLimit(512).setWriteBatchSize(16), { note: 'row groups of 70, 70, 60; several pages each' })
await rust('arrow-messages-v2', nullTurns, { id: i32, messages: aMsg }, b => b.setWriterVersion(V2).setCompression(ZSTD).setDataPageSizeLimit(512).setWriteBatchSize(16))
const example = [{ messages: null }, { messages: [] }, { messages: [null, turn('user', null), turn('assistant', 'ok')] }, { messages: [turn('user', 'hi')] }]
await rust('arrow-worked-example', example, { messages: aMsg }, b => b.setDictionaryEnabled(false), { note: 'nulls at every level' })
await rust('arrow-messages-item', messages, { id: i32, messages: list(struct({ role: utf8, content: large }), true, 'item') }, b => b.setCompression(ZSTD), { note: 'list element named item' })
await rust('arrow-deep', deep, { messages: list(struct({ role: utf8, content: utf8, tool_calls: list(struct({ id: utf8, function: struct({ name: utf8, arguments: utf8 }) })) })), tools: utf8 }, b => b.setCompression(SNAPPY))
await rust('arrow-lists-of-lists', nestedIds, { turns: list(list(i32)) }, b => b.setCompression(SNAPPY))
await rust('arrow-input-ids', ids, { input_ids: list(i32), labels: list(i64) }, b => b.setCompression(SNAPPY).setDataPageSizeLimit(600).setWriteBatchSize(32))
const solid = ids.filter(r => r.input_ids)
await rust('arrow-required', solid, { input_ids: field('input_ids', list(i32, false), false), labels: field('labels', list(i64, false), false) }, b => b.setCompression(ZSTD), { note: 'required lists of required elements: one definition level' })
await rust('arrow-preference', preference, { prompt: utf8, chosen: aMsg, rejected: aMsg, score_chosen: f64, score_rejected: f64, label: bool }, b => b.setCompression(SNAPPY))
await rust('arrow-sharegpt', sharegpt, { conversations: list(struct({ from: utf8, value: utf8 })), system: utf8, weight: f64 }, b => b.setCompression(ZSTD))
await rust('arrow-alpaca', alpaca, { instruction: utf8, input: utf8, output: utf8 }, b => b.setCompression(SNAPPY), { note: '' })
await rust('arrow-long', long, { text: large, id: i64 }, b => b.setCompression(ZSTD).setDataPageSizeLimit(1024).setWriteBatchSize(1).setDictionaryPageSizeLimit(1024), { note: 'strings longer than the page size; dictionary given up' })
await rust('arrow-null-column', kinds, { text: utf8, empty: new A.Null(), kind: utf8 }, b => b.setCompression(SNAPPY), { note: 'a column of type null (INT32, UNKNOWN)' })
await rust('arrow-no-rows', [], { text: utf8, messages: aMsg })
await rust('arrow-one-row', messages.slice(0, 1), { id: i32, messages: aMsg })
await rust('arrow-wide-dictionary', numbers, { n: i32, run: i32 }, b => b.setCompression(ZSTD), { note: 'dictionary of 4999 values: 13-bit indices; long runs in the other column' })

const records = table(40, i => ({ id: i, info: i % 5 === 1 ? null : { source: i % 5 === 2 ? null : 'web', score: i % 3 ? i / 4 : null }, extra: i % 4 ? { tags: i % 6 === 1 ? null : table(i % 3, k => 't' + k) } : null }))
await rust('arrow-structs', records, { id: i32, info: struct({ source: utf8, score: f64 }), extra: struct({ tags: list(utf8) }) }, b => b.setCompression(SNAPPY), { note: 'a null struct against a struct of nulls; a list inside a struct' })
await duck('duckdb-structs', records, { id: 'INTEGER', info: 'STRUCT(source VARCHAR, score DOUBLE)', extra: 'STRUCT(tags VARCHAR[])' }, 'COMPRESSION zstd')
const maps = table(30, i => ({ id: i, attributes: i % 5 === 2 ? null : table(i % 4, k => ({ key: 'k' + k, value: k === 2 ? null : i })) }))
await duck('duckdb-map', maps, { id: 'INTEGER', attributes: 'STRUCT(key VARCHAR, value INTEGER)[]' }, '', { note: 'a map; the expected rows give it as a list of key and value' }, 'id, map_from_entries(attributes) AS attributes')

// ---- hyparquet-writer ----

const lists = (name, element) => [{ name, repetition_type: 'OPTIONAL', num_children: 1, converted_type: 'LIST' }, { name: 'list', repetition_type: 'REPEATED', num_children: 1 }, ...element]
const leaf = (name, type, converted_type, repetition_type = 'OPTIONAL') => ({ name, type, ...(converted_type ? { converted_type } : {}), repetition_type })
async function hypar(name, rows, columns, options = {}, more = {}) {
  const columnData = Object.entries(columns).map(([k, o]) => ({ name: k, data: rows.map(r => o.type === 'INT64' && r[k] !== null ? BigInt(r[k]) : o.wide ? big(r[k]) : r[k]), ...o, wide: undefined }))
  await keep(name, 'hyparquet-writer', Buffer.from(parquetWriteBuffer({ columnData, ...options })), { rows, ...more })
}
const zip = { GZIP: b => new Uint8Array(gzipSync(b)) }
await hypar('hyparquet-text', text, { text: { type: 'STRING' }, source: { type: 'STRING' }, one: { type: 'STRING' }, id: { type: 'INT64' } }, { rowGroupSize: 128, kvMetadata: [{ key: 'huggingface', value: features }] }, { note: 'v2 pages, row groups of 128, 128, 44' })
await hypar('hyparquet-pages', long, { text: { type: 'STRING', columnIndex: true }, id: { type: 'INT64' } }, { pageSize: 1024, codec: 'GZIP', compressors: zip }, { note: 'strings longer than the page size' })
await hypar('hyparquet-encodings', steps, { id: { type: 'INT64', encoding: 'DELTA_BINARY_PACKED' }, wild: { type: 'INT64', encoding: 'DELTA_BINARY_PACKED' }, name: { type: 'STRING', encoding: 'DELTA_BYTE_ARRAY' }, x: { type: 'DOUBLE', encoding: 'BYTE_STREAM_SPLIT' } }, { pageSize: 2048 })
await hypar('hyparquet-length', text, { text: { type: 'STRING', encoding: 'DELTA_LENGTH_BYTE_ARRAY' }, source: { type: 'STRING' }, one: { type: 'STRING' }, id: { type: 'INT64', encoding: 'PLAIN' } }, { codec: 'UNCOMPRESSED' })
await hypar('hyparquet-messages', messages, { id: {}, messages: {} }, { schema: [{ name: 'root', num_children: 2 }, leaf('id', 'INT32'), ...lists('messages', [{ name: 'element', repetition_type: 'OPTIONAL', num_children: 2 }, leaf('role', 'BYTE_ARRAY', 'UTF8'), leaf('content', 'BYTE_ARRAY', 'UTF8')])], pageSize: 700 }, { note: 'v2 pages of a nested column' })
await hypar('hyparquet-input-ids', ids, { input_ids: {}, labels: { wide: true } }, { schema: [{ name: 'root', num_children: 2 }, ...lists('input_ids', [leaf('element', 'INT32')]), ...lists('labels', [leaf('element', 'INT64')])] })
await hypar('hyparquet-json', deep.map(r => ({ messages: r.messages, id: 1 })), { messages: { type: 'JSON' }, id: { type: 'INT32' } }, {}, { rows: deep.map(r => ({ messages: r.messages === null ? null : JSON.stringify(r.messages), id: 1 })), json: ['messages'], note: 'messages as a JSON column: BYTE_ARRAY (JSON)' })

// ---- polars ----

async function polar(name, rows, schema, options, more) {
  const df = pl.DataFrame(Object.fromEntries(Object.entries(schema).map(([k, t]) => [k, t ? pl.Series(k, rows.map(r => r[k]), t) : pl.Series(k, rows.map(r => r[k]))])))
  await keep(name, 'polars', df.writeParquet(options), { rows, ...more })
}
const pText = { text: pl.Utf8, source: pl.Utf8, one: pl.Utf8, id: pl.Int64 }
for (const c of ['uncompressed', 'snappy', 'gzip', 'lz4', 'zstd', 'brotli']) await polar('polars-text-' + c, c === 'zstd' ? text : text.slice(0, 60), pText, { compression: c })
await polar('polars-types', types.map(({ i64, ...r }) => r), { label: pl.Bool, i32: pl.Int32, f32: pl.Float32, weight: pl.Float64, s: pl.Utf8 }, { compression: 'zstd' })
await polar('polars-input-ids', ids, { input_ids: pl.List(pl.Int32), labels: pl.List(pl.Int64) }, { compression: 'zstd' })
// lists of structs: through a frame that polars read from another writer's file
for (const [name, from, rows] of [['polars-messages', 'duckdb-messages', messages], ['polars-messages-null-turns', 'duckdb-messages-null-turns', nullTurns], ['polars-deep', 'duckdb-deep', deep]])
  await keep(name, 'polars', pl.readParquet(readFileSync(join(good, from + '.parquet'))).writeParquet({ compression: 'zstd' }), { rows })

// ---- parquetjs: the legacy list forms ----

async function js(name, rows, shape, fields, options, more) {
  const file = join(here, 'scratch.parquet')
  const w = await pj.ParquetWriter.openFile(new pj.ParquetSchema(fields), file, options)
  for (const r of rows) await w.appendRow(shape(r))
  await w.close()
  const bytes = readFileSync(file); rmSync(file)
  await keep(name, 'parquetjs', bytes, { rows, ...more })
}
const jsTurn = { role: { type: 'UTF8', optional: true, compression: 'GZIP' }, content: { type: 'UTF8', optional: true, compression: 'GZIP' } }
const jsText = { text: { type: 'UTF8', optional: true, compression: 'SNAPPY' }, source: { type: 'UTF8', compression: 'GZIP' }, one: { type: 'UTF8', compression: 'BROTLI' }, id: { type: 'INT64' } }
await js('parquetjs-text', text, r => r, jsText, { useDataPageV2: false, rowGroupSize: 200 })
await js('parquetjs-text-v2', text, r => r, jsText, { useDataPageV2: true, rowGroupSize: 200 }, { note: 'v2 pages, three codecs in one file' })
const filled = messages.filter(r => r.messages?.length)
await js('parquetjs-two-level', messages, r => ({ id: r.id, messages: r.messages && { array: r.messages } }), { id: { type: 'INT32' }, messages: { type: 'LIST', optional: true, fields: { array: { repeated: true, fields: jsTurn } } } }, { rowGroupSize: 500 }, { note: 'legacy: group (LIST) > repeated group array {role, content}' })
await js('parquetjs-two-level-ids', ids, r => ({ input_ids: r.input_ids && { array: r.input_ids }, labels: r.labels && { array: r.labels } }), { input_ids: { type: 'LIST', optional: true, fields: { array: { type: 'INT32', repeated: true } } }, labels: { type: 'LIST', optional: true, fields: { array: { type: 'INT64', repeated: true } } } }, { rowGroupSize: 500 }, { note: 'legacy: group (LIST) > repeated int32 array' })
await js('parquetjs-bare-repeated', filled, r => r, { id: { type: 'INT32' }, messages: { repeated: true, fields: jsTurn } }, { rowGroupSize: 500, useDataPageV2: true }, { note: 'repeated group without LIST' })

// ---- By hand ----

for (const h of handMade(gzipSync)) await keep(h.name, 'hand', h.bytes, h)

writeFileSync(join(good, 'cases.json'), '[\n' + cases.map(c => JSON.stringify(c)).join(',\n') + '\n]\n')
writeFileSync(join(good, 'layout.txt'), layouts.join('\n'))
