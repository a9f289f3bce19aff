// bee-queue: `work` runs a worker, `put WORD …` puts jobs.
const Queue = require('bee-queue');
const { work } = require('./work');

const queue = new Queue('jobs', { redis: { host: '127.0.0.1', port: Number(process.env.QUEUE_PORT) } });
const [, , action, ...words] = process.argv;
if (action === 'work') queue.process(async (job) => work(job.data.word));
else Promise.all(words.map((word) => queue.createJob({ word }).save())).then(() => process.exit());
