// What the tests of pages share: options, a folder, headless Chromium, contrast.
import {existsSync, mkdtempSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join, resolve} from 'node:path';

export const option = (name) => process.argv[process.argv.indexOf(`--${name}`) + 1];
export const qlora = resolve(option('qlora'));
export const shots = process.argv.includes('--shots') ? option('shots') : null;
export const root = resolve(import.meta.dirname, '../..');
export const newFolder = () => mkdtempSync(join(tmpdir(), 'qlora-page-'));

// what: is not tried where there is no browser; then the program ends with 77.
export async function launch(what) {
  const skip = (lacks) => {
    console.log(`SKIPPED: ${lacks}; ${what} is not tried in a browser`);
    process.exit(77);
  };
  const executablePath = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);
  const puppeteer = await import('puppeteer-core').catch(() => skip('puppeteer-core is not installed'));
  if (!executablePath) skip('no Chromium');
  return puppeteer.default.launch({executablePath, args: ['--no-sandbox', '--disable-gpu'], protocolTimeout: 0});
}

// Relative luminance and contrast as WCAG 2 defines them.
export const contrast = ([a, b]) => {
  const luminance = (rgb) => rgb.match(/[\d.]+/g).slice(0, 3).map((c) => {
    const v = c / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  }).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
};
