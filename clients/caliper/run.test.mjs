// Caliper loads a network with SmallBank through Fabric's gateway SDK. None of its transactions may fail, other than those
// that lose a race for an account.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Network, channel } from '../node/src/network.js';

const here = fileURLToPath(new URL('.', import.meta.url));
const workers = 2;
const accounts = 100;
const rounds = { create: workers * accounts, modify: 400, query: 400 };

const only = (folder) => join(folder, readdirSync(folder)[0]);

function configuration(network) {
  const msp = join(network.organization(1), 'users', 'User1@org1.example.com', 'msp');
  return {
    name: 'heddle',
    version: '2.0.0',
    caliper: { blockchain: 'fabric' },
    channels: [{ channelName: channel, contracts: [{ id: 'smallbank' }] }],
    organizations: [
      {
        mspid: 'Org1MSP',
        identities: {
          certificates: [
            {
              name: 'User1',
              clientPrivateKey: { path: only(join(msp, 'keystore')) },
              clientSignedCert: { path: only(join(msp, 'signcerts')) },
            },
          ],
        },
        connectionProfile: { path: join(network.directory, 'profiles', 'connection-org1.json'), discover: false },
      },
    ],
  };
}

function benchmark() {
  const round = ([label, txNumber]) => ({
    label,
    txNumber,
    rateControl: { type: 'fixed-rate', opts: { tps: 50 } },
    workload: { module: join(here, 'smallbank.js'), arguments: { round: label, accounts } },
  });
  return { test: { workers: { number: workers }, rounds: Object.entries(rounds).map(round) } };
}

// How many transactions of each round succeeded and failed, by the last table that Caliper prints.
function results(printed) {
  const found = {};
  for (const [, label, succeeded, failed] of printed.matchAll(/^\| (\w+) +\| (\d+) +\| (\d+) +\|/gm)) {
    found[label] = { succeeded: Number(succeeded), failed: Number(failed) };
  }
  return found;
}

test('Caliper runs SmallBank', async () => {
  const network = await Network.start();
  try {
    const write = (name, document) => writeFileSync(join(network.folder, name), JSON.stringify(document));
    write('network.yaml', configuration(network));
    write('benchmark.yaml', benchmark());
    // Caliper looks for the SDK in its workspace.
    symlinkSync(join(here, 'node_modules'), join(network.folder, 'node_modules'));
    const flags = ['--caliper-flow-only-test', '--caliper-fabric-gateway-enabled', '--caliper-workspace', network.folder];
    const files = ['--caliper-networkconfig', 'network.yaml', '--caliper-benchconfig', 'benchmark.yaml'];
    const caliper = join(here, 'node_modules', '.bin', 'caliper');
    const run = spawnSync(caliper, ['launch', 'manager', ...flags, ...files], { encoding: 'utf8' });
    const printed = run.stdout + run.stderr;
    assert.equal(run.status, 0, printed);
    const found = results(printed);
    for (const [label, count] of Object.entries(rounds)) {
      const { succeeded, failed } = found[label] ?? assert.fail(`no result of ${label} in\n${printed}`);
      assert.equal(succeeded + failed, count, printed);
      const conflicts = (printed.match(/status code: 11\b/g) ?? []).length;
      assert.ok(failed === 0 || (label === 'modify' && failed <= conflicts), printed);
    }
  } finally {
    await network.stop();
  }
});
