package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker"
)

// "Every task that waits in a scope and below it is cancelled … what is enqueued later is not touched": neither what was enqueued after
// the count, nor what a worker takes next.
func TestClear(t *testing.T) {
	t.Parallel()
	a, audit := newTasks(t)
	pending := queue.NewClient(a.rdb, queue.ClientConfig{})
	if _, err := pending.Enqueue(t.Context(), queue.Task{Type: "work", Scope: "p/a", ID: "pending"}); err != nil {
		t.Fatal(err)
	}
	all := TaskChange{Verb: VerbClear, Scope: "p", Reason: "wrong batch"}
	n, err := a.Count(t.Context(), admin, all)
	if err != nil || n.Tasks != 6 || n.More || n.At.IsZero() {
		t.Fatalf("%+v, %v", n, err)
	}
	a.enqueue(queue.Task{Scope: "p/a", ID: "later"}, queue.Task{Scope: "p/new", ID: "newer"})
	all.Before = n.At
	done, err := a.ApplyTasks(t.Context(), admin, all)
	if err != nil || done.Changed != 6 || done.More || len(done.Left) > 0 || len(done.Tasks) != 6 {
		t.Errorf("%+v, %v", done, err)
	}
	if got := a.places(); !sameLines(got, []string{"p/a:later", "p/new:newer", "q:q"}) {
		t.Errorf("%q wait", got)
	}
	if info, err := a.inspector.GetTaskInfo("default", "pending"); err != nil || info.ID != "pending" {
		t.Errorf("a task that a worker takes next: %+v, %v", info, err)
	}
	if _, err := a.inspector.GetTaskInfo("default", "a3"); !isGone(err) {
		t.Errorf("a task that was cancelled: %v", err)
	}
	if line := audit.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, `who=root via=test verb=clear scope=p`) || !strings.Contains(line, "changed=6") {
		t.Errorf("audit: %s", line)
	}
	actions, err := a.Actions(t.Context(), admin)
	if err != nil || len(actions) != 1 || actions[0].Verb != "clear" || actions[0].Scope != "p" || actions[0].Changed != 6 || actions[0].Reason != "wrong batch" {
		t.Errorf("%+v, %v", actions, err)
	}
	if done, err = a.ApplyTasks(t.Context(), admin, TaskChange{Verb: VerbClear, Scope: "p"}); err != nil || done.Changed != 2 {
		t.Errorf("without a time it is about all that wait now: %+v, %v", done, err)
	}
}

// It goes on in bounded steps until none is left. A place whose task has gone holds none of them up.
func TestClearInSteps(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	must(t, a.inspector.DeleteTask("default", "a0"))
	var changed []int
	for {
		done, err := a.ApplyTasks(t.Context(), admin, TaskChange{Verb: VerbClear, Scope: "*", Most: 2})
		if err != nil || done.Left[worker.TaskGone] > 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		if changed = append(changed, done.Changed); !done.More || done.Changed == 0 {
			break
		}
	}
	if fmt.Sprint(changed) != "[2 2 2]" || !slices.Equal(a.places(), []string{"p/a:a0"}) {
		t.Errorf("cancelled %v, and %q wait", changed, a.places())
	}
}

// A task that was granted its start goes on, and keeps it.
func TestClearLeavesGranted(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	if _, err := a.store.Set(t.Context(), policystore.Edit{By: "anna"}, "p", "rate", map[string]string{"per": "1ms"}); err != nil {
		t.Fatal(err)
	}
	a.follow()
	woken, err := a.limits.Waitlist().Dispatch(t.Context(), throttle.DispatchRequest{Provider: "p", Max: 1, CheckAll: true, Lead: time.Second})
	if err != nil || len(woken.Granted) != 1 {
		t.Fatalf("%+v, %v", woken, err)
	}
	_, id, _ := queue.ReadTicket(woken.Granted[0].ID)
	done, err := a.ApplyTasks(t.Context(), admin, TaskChange{Verb: VerbClear, Scope: "p"})
	if err != nil || done.Changed != 5 {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := a.inspector.GetTaskInfo("default", id); err != nil {
		t.Errorf("task %s was granted its start: %v", id, err)
	}
}

// It takes no filter: that is cancel.
func TestClearTakesAScope(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	for _, c := range []TaskChange{{}, {IDs: []string{"a0"}}, {Scope: "p", Queue: "default"}, {Scope: "p", Type: "work"}, {Scope: "p", IDs: []string{"a0"}}} {
		c.Verb = VerbClear
		if _, err := a.ApplyTasks(t.Context(), admin, c); !errors.As(err, new(*TaskChangeError)) || !strings.Contains(err.Error(), "a scope alone") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if len(a.places()) != 7 {
		t.Errorf("%q wait", a.places())
	}
}
