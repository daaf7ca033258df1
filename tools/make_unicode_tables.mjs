#!/usr/bin/env node
// Writes src/unicode/unicode_tables.cc: where the Unicode tables that Hugging Face tokenizers uses
// (several versions at once: 8, 9, 16 and 17, by crate) differ from those of utf8proc and PCRE2.
// Everything is measured, code point by code point, on the real library (npm "tokenizers" in
// tests/interop/node_modules), on this node's Unicode 17 and on the Unicode 14 of Debian 12's
// python3 (the version of its PCRE2). Also writes tests/fixtures/unicode.json: a digest of what
// the real library does with every code point, which the tests compare with ours.
//
//   cd tests/interop && npm install && cd ../.. && node tools/make_unicode_tables.mjs
import {createRequire} from "node:module";
import {execFileSync} from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import {fileURLToPath} from "node:url";

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "..");
const {Tokenizer} = createRequire(path.join(root, "tests/interop/x.js"))("tokenizers");
if (process.versions.unicode !== "17.0") throw new Error("needs a node with Unicode 17");

const tokenizer = (parts) => Tokenizer.fromString(JSON.stringify({version: "1.0", added_tokens: [],
  normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null,
  model: {type: "BPE", vocab: {}, merges: []}, ...parts}));
const normalizer = (n) => { const x = tokenizer({normalizer: n}).getNormalizer(); return (s) => x.normalizeString(s); };
const splitter = (p) => { const x = tokenizer({pre_tokenizer: p}).getPreTokenizer(); return (s) => x.preTokenizeString(s).length; };
const all = [];
for (let c = 0; c < 0x110000; c++) if (c < 0xd800 || c > 0xdfff) all.push(c);
const str = String.fromCodePoint;

// Consecutive code points with equal values become one row [first, last, value].
function rows(points, valueOf = () => null) {
  const out = [];
  for (const c of points) {
    const v = valueOf(c), last = out.at(-1);
    if (last && last[1] === c - 1 && last[2] === v) last[1] = c; else out.push([c, c, v]);
  }
  return out;
}
const hex = (x) => "0x" + x.toString(16);
function table(comment, type, name, list) {
  const cells = list.map(([a, b, v]) => `{${hex(a)}, ${hex(b)}${v === null ? "" : `, ${v}`}}`);
  const lines = [];
  for (const cell of cells) {
    if (lines.length && (lines.at(-1) + ", " + cell).length <= 94) lines[lines.length - 1] += ", " + cell;
    else lines.push(cell);
  }
  return `// ${comment}\nconst ${type} ${name}[${list.length}] = {\n    ${lines.join(",\n    ")}};\n`;
}

// utf8proc's numbering of the general categories.
const order = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split(" ");
const cat14 = execFileSync("python3", ["-c", `
import sys, unicodedata
assert unicodedata.unidata_version == "14.0.0"
print("\\n".join(unicodedata.category(chr(c)) for c in range(0x110000)))`], {maxBuffer: 1 << 26}).toString().split("\n");
const cat16 = new Map();
for (const k of order) {
  if (k === "Cs") continue;
  const n = normalizer({type: "Replace", pattern: {Regex: `\\p{${k}}`}, content: "<<"});
  for (const c of all) if (n(str(c)) === "<<") cat16.set(c, k);
}
const later = rows(all.filter((c) => cat14[c] === "Cn" && cat16.get(c) !== "Cn"), (c) => order.indexOf(cat16.get(c)));

const digits = splitter({type: "Digits", individual_digits: true});
const numbers17 = rows(all.filter((c) => digits("a" + str(c)) === 2 && !cat16.get(c).startsWith("N")));

const nfd = normalizer({type: "NFD"}), nfkd = normalizer({type: "NFKD"});
const marks = ["\u0327", "\u0301", "\u0334", "\u0345"];  // combining classes 202, 230, 1, 240
const inert = new Set();
for (const c of all) {
  const s = str(c);
  let differs = nfd(s) !== s.normalize("NFD") || nfkd(s) !== s.normalize("NFKD");
  for (const m of marks) for (const t of ["a" + m + s, "a" + s + m]) differs ||= nfd(t) !== t.normalize("NFD");
  if (!differs) continue;
  inert.add(c);
  const parts = [...s.normalize("NFD")];
  if (parts.length > 1) inert.add(parts[0].codePointAt(0));  // so that the pair does not compose
}
const inertRows = rows([...inert].sort((a, b) => a - b));

const punctuation = splitter({type: "Punctuation", behavior: "Isolated"});
const ascii = (c) => c < 128;
const isPunctuation = (c) => cat16.get(c).startsWith("P") || /^\p{P}$/u.test(str(c));
const notPunctuation = rows(all.filter((c) => !ascii(c) && isPunctuation(c) && punctuation("a" + str(c)) !== 2));
const morePunctuation = rows(all.filter((c) => !ascii(c) && !isPunctuation(c) && punctuation("a" + str(c)) === 2));

const tables = [
  ["Assigned in Unicode 15 and 16, with their general category (utf8proc's numbers).", "CategoryRange", "kLaterCategories", later],
  ["Numbers of Unicode 17 (general category N).", "CodeRange", "kNumbers17", numbers17],
  ["Characters that Unicode 9 leaves alone and later versions decompose, compose or reorder.", "CodeRange", "kInertInNormalization", inertRows],
  ["Punctuation (general category P) that Unicode 8 does not have.", "CodeRange", "kPunctuationAfterUnicode8", notPunctuation],
  ["Punctuation of Unicode 8 that is not punctuation today.", "CodeRange", "kFormerPunctuation", morePunctuation],
];
const header = `// Ranges of code points, sorted: where the Unicode versions in use differ.
// Made by tools/make_unicode_tables.mjs; do not edit.
#ifndef QLORA_UNICODE_UNICODE_TABLES_H_
#define QLORA_UNICODE_UNICODE_TABLES_H_

namespace qlora {

struct CodeRange {
  char32_t first;
  char32_t last;
};
struct CategoryRange {
  char32_t first;
  char32_t last;
  int category;
};

${tables.map(([comment, type, name, list]) => `// ${comment}\nextern const ${type} ${name}[${list.length}];`).join("\n")}

}  // namespace qlora

#endif  // QLORA_UNICODE_UNICODE_TABLES_H_
`;
const source = `// Made by tools/make_unicode_tables.mjs; do not edit.
#include "unicode/unicode_tables.h"

namespace qlora {

// clang-format off
${tables.map(([comment, type, name, list]) => table(comment, type, name, list)).join("\n")}// clang-format on

}  // namespace qlora
`;
fs.writeFileSync(path.join(root, "src/unicode/unicode_tables.h"), header);
fs.writeFileSync(path.join(root, "src/unicode/unicode_tables.cc"), source);

// FNV-1a over one text a code point, each ended by a zero byte.
function digest(textOf) {
  let hash = 0x811c9dc5;
  for (const c of all) {
    for (const byte of Buffer.from(textOf(str(c)) + "\0")) hash = Math.imul(hash ^ byte, 0x01000193);
  }
  return hash >>> 0;
}
const flag = (test) => (s) => test(s) ? "1" : "0";
const matches = (regex) => { const n = normalizer({type: "Replace", pattern: {Regex: regex}, content: "<<"}); return flag((s) => n(s) === "<<"); };
const word = splitter({type: "Whitespace"});
const blank = splitter({type: "WhitespaceSplit"});
const digests = {
  letter: matches("\\p{L}"), number: matches("\\p{N}"), space: matches("\\s"), mark: matches("\\p{M}"),
  upper_or_title: matches("[\\p{Lu}\\p{Lt}]"), lower: matches("\\p{Ll}"), other_letter: matches("[\\p{Lm}\\p{Lo}]"),
  whitespace: flag((s) => blank("a" + s + "a") === 2),
  numeric: flag((s) => digits("a" + s) === 2),
  word: flag((s) => word("a" + s) === 1 && word("$" + s) === 2),
  punctuation: flag((s) => punctuation("a" + s) === 2),
};
for (const form of ["NFC", "NFKC"]) {
  const n = normalizer({type: form});
  digests[form] = (s) => n(s) + n("a\u0327" + s + "\u0301");
}
const results = Object.fromEntries(Object.entries(digests).map(([name, textOf]) => [name, digest(textOf)]));
fs.writeFileSync(path.join(root, "tests/fixtures/unicode.json"), JSON.stringify(results, null, 2) + "\n");
