// A walk through the API with Go's own clients, which speak protobuf: typed clients, informers, metadata and dynamic clients.
// With a word of any sort it goes into the corners. go-client.sh builds and runs it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

const (
	binary    = "application/vnd.kubernetes.protobuf"
	namespace = "walk"
)

var ctx = context.Background()

func must(err error, what string) {
	if err != nil {
		fail("%s: %v", what, err)
	}
}

func fail(format string, args ...any) {
	fmt.Printf("FAILED: "+format+"\n", args...)
	os.Exit(1)
}

func check(ok bool, format string, args ...any) {
	if !ok {
		fail(format, args...)
	}
}

// counter counts answers by their media type.
type counter struct {
	next  http.RoundTripper
	lock  sync.Mutex
	types map[string]int
}

func (c *counter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	if err == nil {
		c.lock.Lock()
		c.types[response.Header.Get("Content-Type")]++
		c.lock.Unlock()
	}
	return response, err
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(err, "kubeconfig")
	config.QPS, config.Burst = 1000, 1000
	count := &counter{types: map[string]int{}}
	fast := rest.CopyConfig(config)
	fast.ContentType = binary
	fast.AcceptContentTypes = binary + ",application/json"
	fast.Wrap(func(next http.RoundTripper) http.RoundTripper { count.next = next; return count })
	client, plain := kubernetes.NewForConfigOrDie(fast), kubernetes.NewForConfigOrDie(config)

	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(err, "create the namespace")
	if len(os.Args) > 1 {
		corners(config, plain, &counter{types: map[string]int{}}, os.Getenv("ETCD"))
		return
	}
	writes(client, plain)
	errors(client)
	changes(client)
	metadataOnly(config, client)
	custom(config, fast)
	check(count.types["application/json"] == 0, "JSON was answered where protobuf was asked for: %v", count.types)
	check(count.types[binary] > 20 && count.types[binary+";stream=watch"] > 1, "answers: %v", count.types)
	everything(config)
	fmt.Printf("  - answers: %v\n", count.types)
}

func deployment(name string) *appsv1.Deployment {
	surge, zero := intstr.FromString("50%"), int32(0)
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &zero,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "c", Image: "i",
					Resources:     corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1500m")}},
					LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}},
				}}},
			},
		},
	}
}

// writes of all sorts, and what they answer in both encodings.
func writes(client, plain kubernetes.Interface) {
	fmt.Println("  - create, update, patch, apply, scale, status, delete")
	deployments := client.AppsV1().Deployments(namespace)
	_, err := deployments.Create(ctx, deployment("web"), metav1.CreateOptions{})
	must(err, "create a Deployment")
	// Its controller writes to it too.
	must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		present, err := deployments.Get(ctx, "web", metav1.GetOptions{})
		must(err, "get")
		present.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "ü\n\"<>&"}}
		_, err = deployments.Update(ctx, present, metav1.UpdateOptions{})
		return err
	}), "update")
	_, err = deployments.Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
	must(err, "patch")
	must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		scale, err := deployments.GetScale(ctx, "web", metav1.GetOptions{})
		must(err, "scale")
		check(scale.Status.Selector == "app=web", "scale: %+v", scale)
		scale.Spec.Replicas = 0
		_, err = deployments.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{})
		return err
	}), "update the scale")

	secrets := client.CoreV1().Secrets(namespace)
	_, err = secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"b": {0, 255, 10}, "a": {}}}, metav1.CreateOptions{})
	must(err, "create a Secret")
	secret, err := secrets.Get(ctx, "s", metav1.GetOptions{})
	must(err, "get it")
	check(bytes.Equal(secret.Data["b"], []byte{0, 255, 10}), "data: %v", secret.Data)

	maps := client.CoreV1().ConfigMaps(namespace)
	_, err = maps.Apply(ctx, applycorev1.ConfigMap("m", namespace).WithData(map[string]string{"k": "v"}), metav1.ApplyOptions{FieldManager: "walk"})
	must(err, "apply")
	for i := 0; i < 30; i++ {
		large := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%02d", i)}, Data: map[string]string{"k": strings.Repeat("x", 90_000)}}
		_, err = maps.Create(ctx, large, metav1.CreateOptions{})
		must(err, "create a large ConfigMap")
	}
	list, err := maps.List(ctx, metav1.ListOptions{})
	must(err, "list")
	other, err := plain.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	must(err, "list in JSON")
	check(equality.Semantic.DeepEqual(list.Items, other.Items), "a list differs by its encoding")
	page, err := maps.List(ctx, metav1.ListOptions{Limit: 10})
	must(err, "page")
	check(len(page.Items) == 10 && page.Continue != "" && *page.RemainingItemCount > 0, "page: %+v", page.ListMeta)
	must(maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=large-00"}), "deletecollection")
	must(maps.Delete(ctx, "large-01", metav1.DeleteOptions{}), "delete")
}

// errors are Status objects with their reasons, causes and details.
func errors(client kubernetes.Interface) {
	fmt.Println("  - errors")
	maps := client.CoreV1().ConfigMaps(namespace)
	_, err := maps.Get(ctx, "nobody", metav1.GetOptions{})
	check(apierrors.IsNotFound(err), "get: %v", err)
	check(err.Error() == `configmaps "nobody" not found`, "message: %v", err)
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{})
	check(apierrors.IsAlreadyExists(err), "create: %v", err)
	present, err := maps.Get(ctx, "m", metav1.GetOptions{})
	must(err, "get")
	present.ResourceVersion = "1"
	_, err = maps.Update(ctx, present, metav1.UpdateOptions{})
	check(apierrors.IsConflict(err), "update: %v", err)
	broken := deployment("web2")
	broken.Spec.Template.Spec.Containers[0].Name = "No Name"
	broken.Spec.Template.Spec.RestartPolicy = "Sometimes"
	_, err = client.AppsV1().Deployments(namespace).Create(ctx, broken, metav1.CreateOptions{})
	check(apierrors.IsInvalid(err), "create: %v", err)
	status := err.(apierrors.APIStatus).Status()
	check(len(status.Details.Causes) >= 2 && status.Details.Kind == "Deployment", "details: %+v", status.Details)
	watcher, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: "99999999999"})
	if err == nil {
		event := <-watcher.ResultChan()
		check(event.Type == watch.Error, "a watch from the future: %+v", event)
		watcher.Stop()
	}
}

// changes as a watch and as an informer see them.
func changes(client kubernetes.Interface) {
	fmt.Println("  - watches and informers")
	maps := client.CoreV1().ConfigMaps(namespace)
	list, err := maps.List(ctx, metav1.ListOptions{})
	must(err, "list")
	watcher, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: true})
	must(err, "watch")
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	seen := make(chan string, 1000)
	name := func(object any) string { return object.(*corev1.ConfigMap).Name }
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { seen <- "add " + name(object) },
		UpdateFunc: func(_, object any) { seen <- "update " + name(object) },
		DeleteFunc: func(object any) { seen <- "delete " + name(object) },
	})
	must(err, "handler")
	stop := make(chan struct{})
	defer close(stop)
	factory.Start(stop)
	check(cache.WaitForCacheSync(stop, informer.HasSynced), "the cache is filled")
	for range list.Items {
		<-seen
	}
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "live"}}, metav1.CreateOptions{})
	must(err, "create")
	made.Data = map[string]string{"k": "v"}
	_, err = maps.Update(ctx, made, metav1.UpdateOptions{})
	must(err, "update")
	must(maps.Delete(ctx, "live", metav1.DeleteOptions{}), "delete")
	for _, wanted := range []string{"add live", "update live", "delete live"} {
		select {
		case found := <-seen:
			check(found == wanted, "the informer saw %q, not %q", found, wanted)
		case <-time.After(30 * time.Second):
			fail("the informer did not see %q", wanted)
		}
	}
	for _, wanted := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		event := <-watcher.ResultChan()
		check(event.Type == wanted && name(event.Object) == "live", "the watch saw %+v", event)
	}
	watcher.Stop()
}

// metadataOnly reads what all kinds have.
func metadataOnly(config *rest.Config, client kubernetes.Interface) {
	fmt.Println("  - metadata alone")
	all := metadata.NewForConfigOrDie(metadata.ConfigFor(config))
	of := all.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(namespace)
	found, err := of.List(ctx, metav1.ListOptions{})
	must(err, "list")
	whole, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	must(err, "list")
	check(len(found.Items) == len(whole.Items), "%d of %d", len(found.Items), len(whole.Items))
	for i := range found.Items {
		check(equality.Semantic.DeepEqual(found.Items[i].ObjectMeta, whole.Items[i].ObjectMeta), "metadata of %s", found.Items[i].Name)
	}
	watcher, err := of.Watch(ctx, metav1.ListOptions{})
	must(err, "watch")
	event := <-watcher.ResultChan()
	_, ok := event.Object.(*metav1.PartialObjectMetadata)
	check(event.Type == watch.Added && ok, "event: %+v", event)
	watcher.Stop()
}

// custom kinds have no protobuf; clients that take JSON too get that.
func custom(config, fast *rest.Config) {
	fmt.Println("  - a custom kind")
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	plain := dynamic.NewForConfigOrDie(config)
	var definition map[string]any
	must(json.Unmarshal([]byte(`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": {"name": "dogs.walk.example.com"}, "spec": {"group": "walk.example.com", "scope": "Namespaced",
		"names": {"plural": "dogs", "kind": "Dog"}, "versions": [{"name": "v1", "served": true, "storage": true,
		"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`), &definition), "the definition")
	_, err := plain.Resource(definitions).Create(ctx, &unstructured.Unstructured{Object: definition}, metav1.CreateOptions{})
	must(err, "create the definition")
	dogs := schema.GroupVersionResource{Group: "walk.example.com", Version: "v1", Resource: "dogs"}
	dog := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "walk.example.com/v1", "kind": "Dog", "metadata": map[string]any{"name": "rex"}}}
	must(wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		_, err := plain.Resource(dogs).Namespace(namespace).Create(ctx, dog, metav1.CreateOptions{})
		return err == nil, nil
	}), "create a custom object")
	both := rest.CopyConfig(config)
	both.AcceptContentTypes = fast.AcceptContentTypes
	found, err := kubernetes.NewForConfigOrDie(both).CoreV1().RESTClient().Get().AbsPath("/apis/walk.example.com/v1/namespaces/walk/dogs/rex").DoRaw(ctx)
	must(err, "get it")
	check(strings.HasPrefix(string(found), "{"), "JSON: %q", found)
	one, err := metadata.NewForConfigOrDie(metadata.ConfigFor(config)).Resource(dogs).Namespace(namespace).Get(ctx, "rex", metav1.GetOptions{})
	must(err, "its metadata")
	check(one.Name == "rex", "metadata: %+v", one)
}

// everything that is stored is the same in both encodings, and its bytes are those that upstream would write.
func everything(config *rest.Config) {
	client := kubernetes.NewForConfigOrDie(config)
	_, groups, err := client.Discovery().ServerGroupsAndResources()
	must(err, "discovery")
	decoder, encoder := scheme.Codecs.UniversalDeserializer(), protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	lists, equal, size := 0, 0, 0
	for _, group := range groups {
		base := "/apis/" + group.GroupVersion
		if group.GroupVersion == "v1" {
			base = "/api/v1"
		}
		for _, kind := range group.APIResources {
			gv, _ := schema.ParseGroupVersion(group.GroupVersion)
			if !strings.Contains(fmt.Sprint(kind.Verbs), "watch") || !scheme.Scheme.Recognizes(gv.WithKind(kind.Kind+"List")) {
				continue
			}
			path := base + "/" + kind.Name
			get := func(accept string) (runtime.Object, []byte) {
				raw, err := client.RESTClient().Get().AbsPath(path).SetHeader("Accept", accept).DoRaw(ctx)
				must(err, path)
				object, _, err := decoder.Decode(raw, nil, nil)
				must(err, path+" as "+accept)
				return object, raw
			}
			var one, other runtime.Object
			var raw []byte
			same := func(context.Context) (bool, error) {
				one, raw = get(binary)
				other, _ = get("application/json")
				return equality.Semantic.DeepEqual(one, other), nil
			}
			// What is being written meanwhile differs once.
			if wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 10*time.Second, true, same) != nil {
				fail("%s differs by its encoding:\n%+v\n%+v", path, one, other)
			}
			one.GetObjectKind().SetGroupVersionKind(gv.WithKind(kind.Kind + "List"))
			var again bytes.Buffer
			must(encoder.Encode(one, &again), path)
			lists++
			if bytes.Equal(again.Bytes(), raw) {
				equal, size = equal+1, size+len(raw)
				continue
			}
			// A library older than the server leaves out the fields that it does not know, and nothing else.
			check(again.Len() < len(raw), "%s: other bytes than upstream's\n%q\n%q", path, again.Bytes(), raw)
			fmt.Printf("  - %s has fields that this library does not know\n", path)
		}
	}
	check(lists > 40 && equal > lists*3/4, "only %d kinds, %d as upstream writes them", lists, equal)
	fmt.Printf("  - %d of %d kinds of lists, %d bytes, as upstream writes them\n", equal, lists, size)
}
