// Lists at a revision: what each combination of resourceVersion, resourceVersionMatch and limit finds.
package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

func revisions(client kubernetes.Interface) {
	secrets := client.CoreV1().Secrets(namespace)
	for i := range 9 {
		add(secrets, fmt.Sprintf("s%d", i))
	}
	first, err := secrets.List(ctx, metav1.ListOptions{Limit: 3})
	must(err, "the first page")
	matches(secrets, first.ResourceVersion)
	fmt.Println("  - lists at a revision, exactly or not older")
}

func add(secrets corev1client.SecretInterface, name string) {
	_, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(err, "create "+name)
}

func matches(secrets corev1client.SecretInterface, revision string) {
	add(secrets, "later")
	count := func(options metav1.ListOptions) string {
		list, err := secrets.List(ctx, options)
		if err != nil {
			return string(apierrors.ReasonForError(err))
		}
		return fmt.Sprint(len(list.Items))
	}
	for _, case_ := range []struct {
		version, match, found string
		limit                 int64
	}{
		{"", "", "10", 0},
		{"0", "", "10", 0},
		{revision, "", "10", 0},
		{revision, "", "9", 100},
		{revision, "Exact", "9", 0},
		{revision, "Exact", "9", 100},
		{revision, "NotOlderThan", "10", 0},
		{revision, "NotOlderThan", "10", 100},
		{"0", "NotOlderThan", "10", 0},
		{"0", "Exact", "Invalid", 0},
		{"", "Exact", "Invalid", 0},
		{"", "NotOlderThan", "Invalid", 0},
		{revision, "Sometimes", "Invalid", 0},
		{"99999999999", "", "Timeout", 0},
	} {
		found := count(metav1.ListOptions{ResourceVersion: case_.version, ResourceVersionMatch: metav1.ResourceVersionMatch(case_.match), Limit: case_.limit})
		check(found == case_.found, "%+v: %s", case_, found)
	}
	must(secrets.Delete(ctx, "later", metav1.DeleteOptions{}), "delete")
}
