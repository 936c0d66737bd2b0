'use strict';

const { WorkloadModuleBase } = require('@hyperledger/caliper-core');

const balance = '1000000';

// One round of SmallBank: `create` makes the accounts of a worker, `modify` moves money between them, `query` reads them.
class SmallBank extends WorkloadModuleBase {
  created = 0;

  #account() {
    return `${this.workerIndex}-${Math.floor(Math.random() * this.roundArguments.accounts)}`;
  }

  #operation() {
    const from = this.#account();
    // An account cannot pay itself.
    const to = from.replace(/\d+$/, (index) => (Number(index) + 1) % this.roundArguments.accounts);
    const operations = [
      ['transact_savings', '5', from],
      ['deposit_checking', '7', from],
      ['send_payment', '3', to, from],
      ['write_check', '2', from],
    ];
    return operations[Math.floor(Math.random() * operations.length)];
  }

  #call() {
    switch (this.roundArguments.round) {
      case 'create':
        return ['create_account', `${this.workerIndex}-${this.created++}`, 'a customer', balance, balance];
      case 'modify':
        return this.#operation();
      case 'query':
        return ['query', this.#account()];
      default:
        throw new Error(`there is no round ${this.roundArguments.round}`);
    }
  }

  async submitTransaction() {
    const [contractFunction, ...contractArguments] = this.#call();
    const readOnly = contractFunction === 'query';
    await this.sutAdapter.sendRequests({ contractId: 'smallbank', contractFunction, contractArguments, readOnly });
  }
}

module.exports.createWorkloadModule = () => new SmallBank();
