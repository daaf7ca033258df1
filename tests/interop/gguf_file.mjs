// GGUF files as lists of keys and tensors that a test changes and writes again.
import fs from "node:fs";

// By type code: bytes of a number, and how it is read and written.
const kNumbers = [[1, "UInt8"], [1, "Int8"], [2, "UInt16LE"], [2, "Int16LE"], [4, "UInt32LE"], [4, "Int32LE"], [4, "FloatLE"],
  [1, "UInt8"], null, null, [8, "BigUInt64LE"], [8, "BigInt64LE"], [8, "DoubleLE"]];
const kString = 8, kArray = 9;
export const kTypes = {u32: 4, i32: 5, f32: 6, bool: 7, string: kString, u64: 10};

class Reader {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }
  number(type) {
    const [size, name] = kNumbers[type];
    this.at += size;
    return this.bytes[`read${name}`](this.at - size);
  }
  size() { return Number(this.number(10)); }
  text() {
    const size = this.size();
    this.at += size;
    return this.bytes.toString("latin1", this.at - size, this.at);
  }
  value(type) {
    if (type === kString) return this.text();
    if (type !== kArray) return this.number(type);
    const element = this.number(4), count = this.size();
    return {element, values: Array.from({length: count}, () => this.value(element))};
  }
}

// {keys: [{key, type, value}], tensors: [{name, type, shape, data}]}; shape: innermost first. Arrays are {element, values};
// texts are their bytes.
export function readGguf(file) {
  const reader = new Reader(fs.readFileSync(file));
  reader.at = 8;
  const count = reader.size(), keyCount = reader.size();
  const keys = [];
  for (let i = 0; i < keyCount; i++) {
    const key = reader.text(), type = reader.number(4);
    keys.push({key, type, value: reader.value(type)});
  }
  const tensors = [];
  for (let i = 0; i < count; i++) {
    const name = reader.text(), dims = reader.number(4);
    const shape = Array.from({length: dims}, () => reader.size());
    tensors.push({name, type: reader.number(4), shape, offset: reader.size()});
  }
  const begin = Math.ceil(reader.at / 32) * 32;
  tensors.forEach((tensor, i) => {
    const end = i + 1 < count ? begin + tensors[i + 1].offset : reader.bytes.length;
    tensor.data = reader.bytes.subarray(begin + tensor.offset, end);
  });
  return {keys, tensors};
}

function number(type, value) {
  const [size, name] = kNumbers[type];
  const bytes = Buffer.alloc(size);
  bytes[`write${name}`](value);
  return bytes;
}
const size = (value) => number(10, BigInt(value));
const text = (value) => [size(value.length), Buffer.from(value, "latin1")];
function encode(type, value) {
  if (type === kString) return text(value);
  if (type !== kArray) return [number(type, value)];
  return [number(4, value.element), size(value.values.length), ...value.values.flatMap((v) => encode(value.element, v))];
}
const padding = (length) => Buffer.alloc((32 - length % 32) % 32);

export function writeGguf({keys, tensors}, file) {
  const parts = [Buffer.from("GGUF"), number(4, 3), size(tensors.length), size(keys.length)];
  for (const {key, type, value} of keys) parts.push(...text(key), number(4, type), ...encode(type, value));
  let offset = 0;
  for (const {name, type, shape, data} of tensors) {
    parts.push(...text(name), number(4, shape.length), ...shape.map(size), number(4, type), size(offset));
    offset += Math.ceil(data.length / 32) * 32;
  }
  const head = Buffer.concat(parts);
  fs.writeFileSync(file, Buffer.concat([head, padding(head.length), ...tensors.flatMap(({data}) => [data, padding(data.length)])]));
}

export const f32Tensor = (name, shape, values) =>
  ({name, type: 0, shape, data: Buffer.from(Float32Array.from(values).buffer)});
