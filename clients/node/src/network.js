// Starts a Heddle network of its own for a test and connects the unmodified Fabric gateway SDK to it.
import { spawn } from 'node:child_process';
import * as crypto from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as grpc from '@grpc/grpc-js';
import { connect, hash, signers } from '@hyperledger/fabric-gateway';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const program = process.env.HEDDLE ?? join(root, 'target', 'release', 'heddle');
const readyWithinMs = 60_000;

export const channel = 'mychannel';

const only = (folder) => readFileSync(join(folder, readdirSync(folder)[0]));

export class Network {
  static async start({ policy = 'any', orderer = 0, settings = '' } = {}) {
    const folder = mkdtempSync(join(tmpdir(), 'heddle-client-'));
    const config = join(folder, 'heddle.toml');
    writeFileSync(
      config,
      `log = "warn"\n[network]\npolicy = "${policy}"\n[ports]\ngateway = 0\norderer = ${orderer}\nmetrics = 0\n${settings}`,
    );
    const network = new Network(folder);
    network.directory = join(folder, 'network');
    network.child = spawn(program, ['up', '--dir', network.directory, '--config', config], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await network.#ready();
    network.endpoints = JSON.parse(readFileSync(join(network.directory, 'endpoints.json')));
    return network;
  }

  constructor(folder) {
    this.folder = folder;
    this.connections = [];
  }

  async #ready() {
    let printed = '';
    const deadline = setTimeout(() => this.child.kill('SIGKILL'), readyWithinMs);
    for await (const chunk of this.child.stdout) {
      printed += chunk;
      if (printed.includes('ready')) {
        clearTimeout(deadline);
        this.child.stdout.resume();
        return;
      }
    }
    throw new Error(`${program} ended before it was ready:\n${printed}`);
  }

  organization(number) {
    return join(this.directory, 'organizations', 'peerOrganizations', `org${number}.example.com`);
  }

  peerName(number) {
    return `peer0.org${number}.example.com`;
  }

  tlsRoots(number) {
    return readFileSync(join(this.organization(number), 'peers', this.peerName(number), 'tls', 'ca.crt'));
  }

  identity(number, user = 'User1') {
    const msp = join(this.organization(number), 'users', `${user}@org${number}.example.com`, 'msp');
    return {
      identity: { mspId: `Org${number}MSP`, credentials: only(join(msp, 'signcerts')) },
      signer: signers.newPrivateKeySigner(crypto.createPrivateKey(only(join(msp, 'keystore')))),
    };
  }

  client(number) {
    const client = new grpc.Client(
      this.endpoints.gateways[number - 1].address,
      grpc.credentials.createSsl(this.tlsRoots(number)),
      { 'grpc.ssl_target_name_override': this.peerName(number) },
    );
    this.connections.push(client);
    return client;
  }

  gateway(number, options = {}) {
    const gateway = connect({ client: this.client(number), hash: hash.sha256, ...this.identity(number), ...options });
    this.connections.push(gateway);
    return gateway;
  }

  contract(number = 1, name = 'basic') {
    return this.gateway(number).getNetwork(channel).getContract(name);
  }

  async stop() {
    this.connections.reverse().forEach((connection) => connection.close());
    const ended = this.child.exitCode === null ? once(this.child, 'exit') : [this.child.exitCode];
    this.child.kill('SIGINT');
    const [code] = await ended;
    rmSync(this.folder, { recursive: true, force: true });
    if (code !== 0) {
      throw new Error(`heddle ended with ${code} after an interrupt`);
    }
  }
}

let assets = 0;

// An asset identifier that no other test uses.
export const newAsset = () => `asset-${process.pid}-${(assets += 1)}`;

export const text = (bytes) => new TextDecoder().decode(bytes);

// Takes `count` items from an event stream and closes it.
export async function take(events, count, wanted = () => true) {
  const taken = [];
  try {
    for await (const event of events) {
      if (wanted(event)) {
        taken.push(event);
      }
      if (taken.length === count) {
        return taken;
      }
    }
  } finally {
    events.close();
  }
  throw new Error(`the stream ended after ${taken.length} of ${count} events`);
}
