// Texts that are stored in the page compressed, written by `packed` in report/elements/page.py.
const DIGITS = "{{ digits }}";

/** Returns the text that an element contains in base 85, compressed by zlib. */
async function unpack(script) {
  const text = script.textContent.trim();
  const value = new Uint8Array(128);
  [...DIGITS].forEach((digit, number) => { value[digit.charCodeAt(0)] = number; });
  const words = new DataView(new ArrayBuffer(text.length / 5 * 4));
  for (let at = 0, word = 0; at < text.length; at += 5, word += 4) {
    let number = 0;
    for (let digit = at; digit < at + 5; digit += 1) number = number * 85 + value[text.charCodeAt(digit)];
    words.setUint32(word, number);
  }
  return inflated(new Uint8Array(words.buffer, 0, Number(script.dataset.bytes))).text();
}

/** Returns bytes that zlib has compressed as the body of a response. */
const inflated = (bytes) => new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
