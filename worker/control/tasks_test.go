package control

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/waiting"
)

func newTasks(t *testing.T) (*asked, *bytes.Buffer) {
	t.Helper()
	a := newPreviewed(t) // five of p/a, one of p/b, one of q
	audit := &bytes.Buffer{}
	a.log = slog.New(slog.NewTextHandler(audit, nil))
	return a, audit
}

// ids are tasks by their ids.
func ids(list ...string) (tasks []TaskID) {
	for _, id := range list {
		tasks = append(tasks, TaskID{ID: id})
	}
	return tasks
}

// changes wants so many tasks to be changed.
func (a *asked) changes(c TaskChange, want int) TasksDone {
	a.t.Helper()
	done, err := a.ApplyTasks(a.t.Context(), admin, c)
	if err != nil || done.Changed != want {
		a.t.Errorf("%+v: %+v, %v; want %d changed", c, done, err, want)
	}
	return done
}

// places are the scopes and ids of the tasks that wait, in their order within each scope.
func (a *asked) places() (all []string) {
	a.t.Helper()
	for _, provider := range []string{"p", "q"} {
		some, err := inspect.Of(a.limits.Waitlist()).Tasks(provider).Next(a.t.Context(), 1000)
		must(a.t, err)
		for _, p := range some {
			all = append(all, p.Scope+":"+p.ID)
		}
	}
	scope := func(place string) string { return place[:strings.Index(place, ":")] }
	slices.SortStableFunc(all, func(a, b string) int { return strings.Compare(scope(a), scope(b)) })
	return all
}

// Tasks are counted before they are changed, by their ids or by scope, queue and type, and the count is how many are changed.
func TestApplyTasks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change TaskChange
		count  int64
		after  []string
	}{
		{TaskChange{Verb: VerbCancel, Scope: "p"}, 6, []string{"q:q"}},
		{TaskChange{Verb: VerbClear, Scope: "p"}, 6, []string{"q:q"}},
		{TaskChange{Verb: VerbClear, Scope: "*/a"}, 5, []string{"p/b:b", "q:q"}},
		{TaskChange{Verb: VerbCancel, Scope: "*/a"}, 5, []string{"p/b:b", "q:q"}},
		{TaskChange{Verb: VerbCancel, Scope: "p", Queue: "low"}, 0, nil},
		{TaskChange{Verb: VerbCancel, Scope: "p", Queue: "default", Type: "work"}, 6, []string{"q:q"}},
		{TaskChange{Verb: VerbCancel, Scope: "p", Type: "other"}, 0, nil},
		{TaskChange{Verb: VerbCancel, IDs: ids("a1", "q")}, 2, []string{"p/a:a0", "p/a:a2", "p/a:a3", "p/a:a4", "p/b:b"}},
		{TaskChange{Verb: VerbMove, Scope: "p/b", To: "q"}, 1, []string{"p/a:a0", "p/a:a1", "p/a:a2", "p/a:a3", "p/a:a4", "q:q", "q:b"}},
		{TaskChange{Verb: VerbPriority, IDs: ids("a4", "a3"), Priority: 9}, 2, []string{"p/a:a4", "p/a:a3", "p/a:a0", "p/a:a1", "p/a:a2", "p/b:b", "q:q"}},
		{TaskChange{Verb: VerbRun, IDs: ids("a3", "a2")}, 2, []string{"p/a:a3", "p/a:a2", "p/a:a0", "p/a:a1", "p/a:a4", "p/b:b", "q:q"}},
	} {
		t.Run(fmt.Sprintf("%+v", c.change), func(t *testing.T) {
			t.Parallel()
			a, audit := newTasks(t)
			before := a.places()
			n, err := a.Count(t.Context(), admin, c.change)
			if err != nil || n.Tasks != c.count || n.More || !slices.Equal(a.places(), before) {
				t.Errorf("%+v, %v; want %d, and no change", n, err, c.count)
			}
			done, err := a.ApplyTasks(t.Context(), admin, c.change)
			if err != nil || done.Changed != int(c.count) || len(done.Left) > 0 || done.More {
				t.Errorf("%+v, %v", done, err)
			}
			if got := a.places(); !slices.Equal(got, c.after) && (c.after != nil || !slices.Equal(got, before)) {
				t.Errorf("got %q, want %q", got, c.after)
			}
			if line := audit.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, fmt.Sprintf("who=root via=test verb=%s scope=%s", c.change.Verb, cmp.Or(c.change.Scope, `""`))) || !strings.Contains(line, fmt.Sprint("changed=", c.count)) {
				t.Errorf("audit: %s", line)
			}
		})
	}
}

// Each action on tasks, by each role: at a scope of its own, and at another's; by the scope and by the ids.
func TestTaskRoles(t *testing.T) {
	t.Parallel()
	for _, verb := range taskVerbs {
		for role, where := range mayDo[verb] {
			for _, one := range []struct{ scope, id, to string }{{"p/a", "a0", "p/a/x"}, {"p/b", "b", "p/a"}, {"p/a", "a0", "p/b"}} {
				for _, byID := range []bool{false, true} {
					if byID && verb == VerbClear {
						continue // it takes no ids
					}
					name := fmt.Sprintf("%s %s of %s to %s, by id: %t", role, verb, one.scope, one.to, byID)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						a, audit := newTasks(t)
						before := a.places()
						c := TaskChange{Verb: verb, To: one.to, Priority: 1}
						if c.Scope = one.scope; byID {
							c.Scope, c.IDs = "", ids(one.id)
						}
						actor := Actor{Name: "anna", Role: role}
						own := one.scope == "p/a" && (verb != VerbMove || one.to != "p/b")
						want := where == "everywhere" || where == "own" && own
						_, countErr := a.Count(t.Context(), actor, c)
						done, err := a.ApplyTasks(t.Context(), actor, c)
						if (err == nil) != want || (countErr == nil) != want || want && done.Changed == 0 {
							t.Errorf("%+v, %v, and counting %v; want allowed %t", done, err, countErr, want)
						}
						if !want && (role > RoleNone && !errors.As(err, new(*ForbiddenError)) || !slices.Equal(a.places(), before) || audit.Len() > 0) {
							t.Errorf("refused with %v, or something was changed: %q, %s", err, a.places(), audit)
						}
					})
				}
			}
		}
	}
}

// A change that does not say what to do, or to which tasks, is refused, and changes none.
func TestTaskChangesAreChecked(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	for want, c := range map[string]TaskChange{
		"no task is named, and no scope":                          {Verb: VerbCancel},
		"tasks are named by their ids or by a scope, not by both": {Verb: VerbCancel, Scope: "p", IDs: ids("x")},
		"no scope to move to":                                     {Verb: VerbMove, Scope: "p"},
		"priority 9000000 is not from -1000000 to 1000000":        {Verb: VerbPriority, Scope: "p", Priority: 9_000_000},
		`tasks cannot be changed by "pause"`:                      {Verb: VerbPause, Scope: "p"},
		"200000 is not from 1 to 100000 tasks":                    {Verb: VerbCancel, Scope: "p", Most: 200_000},
		"no queue has a task none":                                {Verb: VerbCancel, IDs: ids("none")},
		"a scope alone":                                           {Verb: VerbClear, Scope: "p", Queue: "default"},
		"scope \"nowhere\" meets no rule":                         {Verb: VerbMove, Scope: "p", To: "nowhere"},
		"throttle: scope \"p//x\": name 2 is empty":               {Verb: VerbMove, Scope: "p", To: "p//x"},
	} {
		if _, err := a.ApplyTasks(t.Context(), admin, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %s", c, err, want)
		}
	}
	if len(a.places()) != 7 {
		t.Errorf("%q wait", a.places())
	}
}

// A move to a scope of others is refused alike whether the limits have a rule for it or not, and a pattern is no target.
func TestMoveTellsNothingOfItsTarget(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	anna := Actor{Name: "anna", Role: RoleOwner, Scopes: []string{"p/a"}}
	for _, to := range []string{"q", "nowhere", "p/b", "p/*", "p//b"} {
		_, err := a.Count(t.Context(), anna, TaskChange{Verb: VerbMove, Scope: "p/a", To: to})
		if want := "anna may not move tasks of " + to; err == nil || err.Error() != want {
			t.Errorf("to %s: %v, want %s", to, err, want)
		}
	}
	if _, err := a.Count(t.Context(), admin, TaskChange{Verb: VerbMove, Scope: "p/a", To: "p/*"}); !errors.As(err, new(*policy.ScopeError)) {
		t.Errorf("to a pattern: %v", err)
	}
}

// A task of a scope that the actor may not see is answered as one that does not exist.
func TestHiddenTasksAreNone(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	c := TaskChange{Verb: VerbCancel, IDs: ids("a0")}
	for actor, want := range map[*Actor]bool{
		{Name: "olga", Role: RoleOwner, Scopes: []string{"q"}}: true,
		{Name: "olga", Role: RoleOwner}:                        false, // it may see the task, and not cancel it
	} {
		none, forbidden := new(NoTaskError), new(ForbiddenError)
		_, countErr := a.Count(t.Context(), *actor, c)
		_, err := a.ApplyTasks(t.Context(), *actor, c)
		if errors.As(err, &none) != want || errors.As(err, &forbidden) == want || errors.As(countErr, &none) != want {
			t.Errorf("%+v: %v, and counting %v; want as if there was none: %t", *actor, err, countErr, want)
		}
	}
	if len(a.places()) != 7 {
		t.Errorf("%q wait", a.places())
	}
}

// "Every task that waits in a scope and below it is cancelled … what is enqueued later is not touched": neither what was enqueued after
// the count, nor what a worker takes next.
func TestClear(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	pending := queue.NewClient(a.rdb, queue.ClientConfig{})
	_, err := pending.Enqueue(t.Context(), queue.Task{Type: "work", Scope: "p/a", ID: "pending"})
	must(t, err)
	all := TaskChange{Verb: VerbClear, Scope: "p", Reason: "wrong batch"}
	n, err := a.Count(t.Context(), admin, all)
	if err != nil || n.Tasks != 6 || n.More || n.At.IsZero() {
		t.Fatalf("%+v, %v", n, err)
	}
	a.enqueue(queue.Task{Scope: "p/a", ID: "later"}, queue.Task{Scope: "p/new", ID: "newer"})
	all.Before = n.At
	if done := a.changes(all, 6); done.More || len(done.Left) > 0 || len(done.Tasks) != 6 {
		t.Errorf("%+v", done)
	}
	if got := a.places(); !slices.Equal(got, []string{"p/a:later", "p/new:newer", "q:q"}) {
		t.Errorf("%q wait", got)
	}
	if info, err := a.inspector.GetTaskInfo("default", "pending"); err != nil || info.ID != "pending" {
		t.Errorf("a task that a worker takes next: %+v, %v", info, err)
	}
	if _, err := a.inspector.GetTaskInfo("default", "a3"); !waiting.IsGone(err) {
		t.Errorf("a task that was cancelled: %v", err)
	}
	actions, err := a.AllActions(t.Context())
	if err != nil || len(actions) != 1 || actions[0].Verb != "clear" || actions[0].Scope != "p" || actions[0].Changed != 6 || actions[0].Reason != "wrong batch" {
		t.Errorf("%+v, %v", actions, err)
	}
	a.changes(TaskChange{Verb: VerbClear, Scope: "p"}, 2) // without a time it is about all that wait now
}

// It goes on in bounded steps until none is left. A place whose task has gone holds none of them up.
func TestClearInSteps(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	must(t, a.inspector.DeleteTask("default", "a0"))
	var changed []int
	for {
		done, err := a.ApplyTasks(t.Context(), admin, TaskChange{Verb: VerbClear, Scope: "*", Most: 2})
		if err != nil || done.Left[waiting.Gone] > 1 {
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
	a.edit(a.store.Set(t.Context(), policystore.Edit{By: "anna"}, "p", "rate", map[string]string{"per": "1ms"}))
	woken, err := a.limits.Waitlist().Dispatch(t.Context(), waitlist.Request{Provider: "p", Max: 1, Lead: time.Second, Serves: []wire.Weighted{{Queue: "default", Weight: 1}}})
	if err != nil || len(woken.Granted) != 1 {
		t.Fatalf("%+v, %v", woken, err)
	}
	id := woken.Granted[0].ID
	a.changes(TaskChange{Verb: VerbClear, Scope: "p"}, 5)
	if _, err := a.inspector.GetTaskInfo("default", id); err != nil {
		t.Errorf("task %s was granted its start: %v", id, err)
	}
}
