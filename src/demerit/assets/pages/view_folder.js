/* The page in a folder: what a server would answer at /A is in the script data/A.js, which hands it to `receive`. */

const received = new Map();
const receive = (address, content) => received.set(address, content);

window.fetch = (address) => new Promise((resolve) => {
  const script = make('script', { src: `data${address}.js` });
  const settle = () => {
    script.remove();
    const content = received.get(address);
    received.delete(address);
    resolve({ ok: content !== undefined, json: async () => content, text: async () => 'It is not in this folder, or it cannot be read.' });
  };
  script.addEventListener('load', settle);
  script.addEventListener('error', settle);
  document.head.append(script);
});
