// What the comparisons with npm packages share: the package, the options, and a folder for files.
import {createRequire} from "node:module";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import {fileURLToPath, pathToFileURL} from "node:url";

// The package from JINJA_NODE_MODULES or from the folder here; without it, the program ends with 77.
export async function load(name) {
  const here = path.join(path.dirname(fileURLToPath(import.meta.url)), "node_modules");
  for (const modules of [process.env.JINJA_NODE_MODULES, here]) {
    if (!modules) continue;
    try {
      return await import(pathToFileURL(createRequire(path.join(modules, "x.js")).resolve(name)).href);
    } catch (e) { /* the next place */ }
  }
  console.log(`SKIPPED: npm package "${name}" is not installed (npm install in tests/interop)`);
  process.exit(77);
}

// --name value ... over `defaults`; without one of the `needed`, the program ends with 2.
export function readOptions(defaults, needed, usage) {
  const options = {...defaults};
  for (let i = 2; i + 1 < process.argv.length; i += 2) {
    options[process.argv[i].replace(/^--/, "")] = process.argv[i + 1];
  }
  if (needed.every((name) => options[name])) return options;
  console.error(`usage: ${usage}`);
  process.exit(2);
}

// A folder that is removed when the program ends.
export function scratchFolder() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "qlora-peer-"));
  process.on("exit", () => fs.rmSync(folder, {recursive: true, force: true}));
  return folder;
}

// A copy in `folder` of a tiny model, with a chat template. Returns its path, whose last part is `tiny`.
export function tinyChatModel(folder) {
  const model = path.join(folder, "tiny");
  fs.cpSync(fileURLToPath(new URL("../golden/llama3-tiny", import.meta.url)), model, {recursive: true});
  fs.writeFileSync(path.join(model, "chat_template.jinja"), "{{ bos_token }}{% for m in messages %}[{{ m.role }}]" +
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}");
  return model;
}
