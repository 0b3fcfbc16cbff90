// What clients do where most of them never come: history that is cut off under a list or a watch, CBOR, and several that
// want to lead.
package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/pager"
)

// corners walks through a server, which keeps its objects in this etcd if there is one.
func corners(config *rest.Config, client kubernetes.Interface, count *counter, etcd string) {
	leading(client)
	for i := range 25 {
		makeMap(client, fmt.Sprintf("page-%02d", i))
	}
	pages(client, etcd)
	pagerGoesOn(client, etcd)
	watches(client, etcd)
	revisions(client)
	inCbor(config, count)
}

func makeMap(client kubernetes.Interface, name string) {
	_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(err, "create "+name)
}

// A server remembers 48 MiB of changes, and etcd until it is told to forget.
const (
	large   = 900 << 10
	updates = 64
)

// cutOff changes so much that the server forgets what was before, and has etcd forget it too. Returns a forgotten revision.
func cutOff(client kubernetes.Interface, etcd string) string {
	api := client.CoreV1().ConfigMaps(namespace)
	before, err := api.List(ctx, metav1.ListOptions{Limit: 1})
	must(err, "list")
	object, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "large-"}}, metav1.CreateOptions{})
	must(err, "create")
	for i := range updates {
		object.BinaryData = map[string][]byte{"b": bytes.Repeat([]byte{byte(i)}, large)}
		object, err = api.Update(ctx, object, metav1.UpdateOptions{})
		must(err, "update")
	}
	must(api.Delete(ctx, object.Name, metav1.DeleteOptions{}), "delete")
	if etcd != "" {
		out, err := exec.Command("etcdctl", "--endpoints", etcd, "compact", object.ResourceVersion).CombinedOutput()
		check(err == nil, "etcdctl compact: %s", out)
	}
	return before.ResourceVersion
}

func maps(list *corev1.ConfigMapList) int {
	n := 0
	for _, item := range list.Items {
		if strings.HasPrefix(item.Name, "page-") {
			n++
		}
	}
	return n
}

// pages: the token of a list whose revision is gone is refused with one that goes on from the same place.
func pages(client kubernetes.Interface, etcd string) {
	api := client.CoreV1().ConfigMaps(namespace)
	first, err := api.List(ctx, metav1.ListOptions{Limit: 10})
	must(err, "the first page")
	check(first.Continue != "" && len(first.Items) == 10, "the first page: %d", len(first.Items))
	cutOff(client, etcd)
	_, err = api.List(ctx, metav1.ListOptions{Limit: 10, Continue: first.Continue})
	check(apierrors.IsResourceExpired(err), "an old token gave %v", err)
	status, _ := err.(apierrors.APIStatus)
	fresh := status.Status().Continue
	check(fresh != "" && fresh != first.Continue, "no fresh token: %+v", status.Status())
	rest, err := api.List(ctx, metav1.ListOptions{Continue: fresh})
	must(err, "the rest")
	check(maps(first)+maps(rest) == 25, "%d and %d of 25", maps(first), maps(rest))
	fmt.Println("  - an expired token, and the fresh one that goes on")
}

// pagerGoesOn: the library's own pager gets everything although history is cut off between its pages.
func pagerGoesOn(client kubernetes.Interface, etcd string) {
	once := sync.Once{}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if options.Continue != "" {
			once.Do(func() { cutOff(client, etcd) })
		}
		return client.CoreV1().ConfigMaps(namespace).List(ctx, options)
	}
	paging := pager.New(list)
	paging.PageSize = 7
	all, _, err := paging.List(ctx, metav1.ListOptions{})
	must(err, "page by page")
	found := 0
	must(meta.EachListItem(all, func(object runtime.Object) error {
		if strings.HasPrefix(object.(*corev1.ConfigMap).Name, "page-") {
			found++
		}
		return nil
	}), "what was found")
	check(found == 25, "%d of 25", found)
	fmt.Println("  - a pager that goes on")
}

// watches: one that begins before what is known ends with 410, and an informer that meets it begins anew.
func watches(client kubernetes.Interface, etcd string) {
	api := client.CoreV1().ConfigMaps(namespace)
	old := cutOff(client, etcd)
	expired := func() error {
		stream, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: old})
		if err != nil {
			return err
		}
		defer stream.Stop()
		for event := range stream.ResultChan() {
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
		}
		return nil
	}
	// The server learns of it from etcd in its own time.
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		err := expired()
		return apierrors.IsResourceExpired(err) || apierrors.IsGone(err), nil
	})
	must(err, "a watch from a revision that is gone")

	asked := 0
	source := &cache.ListWatch{
		ListFunc: func(options metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, options) },
		WatchFunc: func(options metav1.ListOptions) (watch.Interface, error) {
			asked++
			if asked == 1 {
				options.ResourceVersion, options.SendInitialEvents, options.ResourceVersionMatch = old, nil, ""
			}
			return api.Watch(ctx, options)
		},
	}
	informer := cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, cache.Indexers{})
	stop := make(chan struct{})
	go informer.Run(stop)
	check(cache.WaitForCacheSync(stop, informer.HasSynced), "the informer never knows everything")
	makeMap(client, "later")
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 60*time.Second, true, func(context.Context) (bool, error) {
		_, seen, _ := informer.GetStore().GetByKey(namespace + "/later")
		return seen, nil
	})
	must(err, "an informer whose history was cut off")
	check(asked > 1, "the informer asked once")
	close(stop)
	fmt.Println("  - a watch that is too old, and an informer that begins anew")
}

// leading: one leads, and the other one when the first has ended.
func leading(client kubernetes.Interface) {
	began := make(chan string, 10)
	candidate := func(name string) context.CancelFunc {
		mine, stop := context.WithCancel(ctx)
		lock := &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "leader", Namespace: namespace},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		}
		go leaderelection.RunOrDie(mine, leaderelection.LeaderElectionConfig{
			Lock: lock, ReleaseOnCancel: true,
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { began <- name },
				OnStoppedLeading: func() {},
			},
		})
		return stop
	}
	stop := candidate("one")
	check(<-began == "one", "the first does not lead")
	defer candidate("two")()
	stop()
	check(<-began == "two", "the second does not lead")
	lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, "leader", metav1.GetOptions{})
	must(err, "the lease")
	check(*lease.Spec.HolderIdentity == "two", "the lease is held by %q", *lease.Spec.HolderIdentity)
	fmt.Println("  - leader election")
}

// inCbor: the dynamic client, which prefers CBOR where it is told to.
func inCbor(config *rest.Config, count *counter) {
	binary := rest.CopyConfig(config)
	binary.Wrap(func(next http.RoundTripper) http.RoundTripper { count.next = next; return count })
	client, err := dynamic.NewForConfig(binary)
	must(err, "the dynamic client")
	api := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(namespace)
	stream, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=in-cbor"})
	must(err, "watch")
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "in-cbor"},
		"data": map[string]any{"a": "ä\n\"", "n": "1"}, "binaryData": map[string]any{"b": "AAECAw=="},
	}}
	// A client speaks CBOR once it has seen that the server does.
	for range 2 {
		_, err = api.List(ctx, metav1.ListOptions{})
		must(err, "list")
	}
	made, err := api.Create(ctx, object, metav1.CreateOptions{})
	must(err, "create")
	event := <-stream.ResultChan()
	check(event.Type == watch.Added, "the watch saw %v", event)
	seen := event.Object.(*unstructured.Unstructured)
	data, _, _ := unstructured.NestedStringMap(seen.Object, "data")
	check(seen.GetUID() == made.GetUID() && data["a"] == "ä\n\"", "the watch saw %v", seen)
	binaryData, _, _ := unstructured.NestedString(made.Object, "binaryData", "b")
	check(binaryData == "AAECAw==", "bytes became %q", binaryData)
	made.SetLabels(map[string]string{"x": "y"})
	_, err = api.Update(ctx, made, metav1.UpdateOptions{})
	must(err, "update")
	must(api.Delete(ctx, "in-cbor", metav1.DeleteOptions{}), "delete")
	_, err = api.Get(ctx, "in-cbor", metav1.GetOptions{})
	check(apierrors.IsNotFound(err), "deleted, and then: %v", err)
	check(count.types["application/cbor"] > 3 && count.types["application/cbor-seq"] == 1, "answers: %v", count.types)
	check(count.types["application/json"] == 0, "answers: %v", count.types)
	fmt.Printf("  - CBOR: %v\n", count.types)
}
