// The usual ways of programs with JavaScript's client: objects, an informer, patches, apply, and refusals with all their causes.
import assert from 'node:assert/strict';
import * as k8s from '@kubernetes/client-node';

const TEXT = '<&>\u2028é';
const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);
const { name: namespace } = (await core.createNamespace({ body: { metadata: { generateName: 'js-' } } })).metadata;
const map = (name, data) => ({ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, namespace }, data });

await core.createNamespacedConfigMap({ namespace, body: map('a', { k: TEXT }) });
assert.equal((await core.readNamespacedConfigMap({ namespace, name: 'a' })).data.k, TEXT);

// The news that the informer has to tell, each once and in this order for each object.
const wanted = new Set(['add a', 'update a', 'delete a', 'add b']);
const informer = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`, () =>
  core.listNamespacedConfigMap({ namespace, labelSelector: '!none' }));
const told = new Promise((resolve, reject) => {
  for (const sort of ['add', 'update', 'delete']) {
    informer.on(sort, (object) => {
      wanted.delete(`${sort} ${object.metadata.name}`);
      if (wanted.size === 0) resolve();
    });
  }
  informer.on('error', reject);
});
await informer.start();
await objects.patch(map('a', { k: '2' }), undefined, undefined, 'me', undefined, k8s.PatchStrategy.MergePatch);
const applied = await objects.patch(map('b', { k: '2' }), undefined, undefined, 'me', true, k8s.PatchStrategy.ServerSideApply);
assert.deepEqual(applied.metadata.managedFields.map(({ manager, operation }) => [manager, operation]), [['me', 'Apply']]);
await core.deleteNamespacedConfigMap({ namespace, name: 'a' });
await told;
await informer.stop();

const refusal = await core
  .createNamespacedService({ namespace, body: { metadata: { name: 'X' }, spec: { ports: [{ port: 0 }] } } })
  .then(() => assert.fail('a Service that is none was taken'), (error) => error);
const status = typeof refusal.body === 'string' ? JSON.parse(refusal.body) : refusal.body;
assert.equal(refusal.code, 422);
assert.deepEqual(status.details.causes.map(({ field }) => field).sort(), ['metadata.name', 'spec.ports[0].port', 'spec.ports[0].targetPort']);

await core.deleteNamespace({ name: namespace });
process.exit(0);
