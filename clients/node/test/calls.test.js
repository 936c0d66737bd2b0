import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Network, newAsset } from '../src/network.js';

// Enough to pass every limit of a thousand on one connection; `cargo xtask calls` makes many more.
const calls = Number(process.env.CALLS ?? 3000);
const atOnce = 64;

let network;
before(async () => {
  network = await Network.start();
});
after(() => network?.stop());

// The story: this client ends its side of a call in a frame of its own, which came after the answer had left. The server took
// it for an error, and after a thousand of them it ended the connection.
test(`${calls} calls on one connection are all answered`, async () => {
  const contract = network.contract();
  const id = newAsset();
  await contract.submitTransaction('CreateAsset', id, 'blue', '5', 'Tomoko', '300');
  let begun = 0;
  const failures = [];
  const begin = Date.now();
  const work = async () => {
    while (begun < calls) {
      begun += 1;
      await contract.evaluateTransaction('ReadAsset', id).catch((error) => failures.push(error));
    }
  };
  await Promise.all(Array.from({ length: atOnce }, work));
  console.log(`node: ${calls} calls, ${failures.length} lost, ${(Date.now() - begin) / 1000} s`);
  assert.deepEqual(failures.slice(0, 3), []);
});
