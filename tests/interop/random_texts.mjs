// Random texts of what tokenizers treat in different ways: words of many scripts, code, spaces, digits,
// and texts of the tokenizer itself.

const words = ("the a of and to in is it that was for on are with as his they be at one have this from or had by " +
  "hello word world tokenizer antidisestablishmentarianism HTTPServer camelCase snake_case UPPER Straße naïve café " +
  "résumé über œuvre Ελλάδα λόγος привет мир Ёлка שלום مرحبا नमस्ते ภาษาไทย 한국어 日本語 中文 ひらがな カタカナ ｶﾞｷﾞ " +
  "ﬁne ﬂow ½ ² ① Ⅷ ㎏ ™ … ﷺ ǅ ǆ İstanbul ıldız ſtraße K Å").split(" ");
const snippets = ["for (int i = 0; i < n; ++i) {", "    return x[i] += 1;\n", "#include <vector>\r\n", "\tif a != b:\n\t\tpass\n",
  "{\"key\": [1, 2.5e-3, null]}", "<html lang=\"en\">", "SELECT * FROM t WHERE a='b';", "http://x.org/a?b=c&d=%20", "a->b::c<d>()",
  "I'm you're he'll we've they'd it's don't", "I'M YOU'RE HE'LL WE'VE THEY'D IT'S", "'ſ 'S 'LL'll'Ve", "''s 's's", "$1,234.56",
  "2024-11-21T08:09:10Z", "١٢٣ ४५६ Ⅳ½²", "0x1F 1_000_000", "𝟏𝟐𝟑𝒜𝓑", "e\u0301a\u0300\u0323", "\u1100\u1161\u11a8", "가각", "각",
  "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "☺️", "❤", "\u200b\u200d\ufeff", "\u00ad", "\u0000", "\u0001\u007f\u0085", "<0x41><0x0A>", "▁▁ ▁a", "\ufffd",
  "\u0345\u0301\u0327", "\u0323\u0307q", "\u0958\u0f73\u2adc", "Å", "ῼ", "ﬃ", "\u{1D15E}"];
const spaces = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2003", "\u1680", "\u180e", "\u2028", "\u0085", "\v\f"];
const ranges = [[0x20, 0x7e], [0xa0, 0x24f], [0x250, 0x36f], [0x370, 0x52f], [0x590, 0x6ff], [0x700, 0xfff], [0x1000, 0x1fff],
  [0x2000, 0x2bff], [0x2c00, 0x2fff], [0x3000, 0x9fff], [0xa000, 0xabff], [0xac00, 0xd7a3], [0xe000, 0xffff], [0x10000, 0x11fff],
  [0x12000, 0x1afff], [0x1b000, 0x1efff], [0x1f000, 0x1ffff], [0x20000, 0x323af], [0x0, 0x10ffff]];

// Numbers in [0, 1), whole ones below n, and items of lists, by mulberry32.
export function randomChoices(seed) {
  let state = seed >>> 0;
  function random() {
    state = (state + 0x6D2B79F5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
  const below = (n) => Math.floor(random() * n);
  const pick = (list) => list[below(list.length)];
  return {random, below, pick};
}

// A seed gives the same texts again.
export function randomTexts(seed) {
  const {random, below, pick} = randomChoices(seed);
  const times = (n, f) => Array.from({length: n}, f).join("");
  const codePoint = (low, high) => {
    const c = low + below(high - low + 1);
    return c >= 0xD800 && c <= 0xDFFF ? "\u{1F600}" : String.fromCodePoint(c);
  };

  // One piece of random text; `own` are texts of the tokenizer itself.
  function piece(own) {
    switch (below(14)) {
      case 0: case 1: return (random() < 0.7 ? " " : "") + pick(words);
      case 2: return pick(words) + pick([",", ".", "!", "?", ";", ":", "'s", "\"", ")", "-", "…", "。"]);
      case 3: return pick(snippets);
      case 4: return pick(spaces);
      case 5: return times(1 + below(12), () => pick(spaces));
      case 6: return times(1 + below(8), () => String(below(10)));
      case 7: { const [low, high] = pick(ranges); return times(1 + below(6), () => codePoint(low, high)); }
      case 8: return pick(own.added);
      case 9: { const t = pick(own.added); return pick([t.slice(0, -1), t + t, " " + t + " ", "\n" + t, t.toUpperCase(), t.slice(1), "x" + t, t + "y"]); }
      case 10: return pick(own.pieces);
      case 11: return times(1 + below(5), () => pick(own.pieces));
      case 12: return times(1 + below(20), () => pick(["a", "b", "aa", "ab", "ll", "s", "'", "-"]));
      default: return times(1 + below(3), () => pick([" ", ""]) + codePoint(0x61, 0x7a) + pick(["'s", "\u0301", "1", "_", ""]));
    }
  }

  return {random, below, pick, times, piece};
}
