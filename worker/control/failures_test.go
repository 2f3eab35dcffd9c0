package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/worker/waiting"
)

// failing has one task of each scope fail for good, and one that is tried again in an hour. Their ids are those of their scopes with "-end"
// and "-again".
func (a *asked) failing(scopes ...string) {
	a.t.Helper()
	client := asynq.NewClientFromRedisClient(a.rdb)
	for i, scope := range scopes {
		for _, end := range []string{"-end", "-again"} {
			task := asynq.NewTaskWithHeaders("mail", []byte("card 4711"), map[string]string{queue.HeaderScope: scope})
			_, err := client.Enqueue(task, asynq.TaskID(scope+end), asynq.Queue("failing"), asynq.MaxRetry(3), asynq.Timeout(time.Duration(i+1)*time.Minute))
			must(a.t, err)
		}
	}
	server := asynq.NewServerFromRedisClient(a.rdb, asynq.Config{
		Queues: map[string]int{"failing": 1}, LogLevel: asynq.FatalLevel, TaskCheckInterval: 50 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	must(a.t, server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		if strings.HasSuffix(id, "-end") {
			return fmt.Errorf("invoice 17 of %s is void\nmore: %w", id, asynq.SkipRetry)
		}
		return errors.New("no answer in 30 s")
	})))
	defer server.Shutdown()
	redistest.WaitAsking(a.t, "the failures", time.Minute, func() bool {
		n, err := a.failedCounts(a.t.Context(), "failing")
		return err == nil && int(n[0]) == len(scopes) && int(n[1]) == len(scopes)
	})
}

// failed are the failed tasks, by id.
func (a *asked) failed() (ids []string) {
	a.t.Helper()
	for _, name := range []string{"failing", "default"} {
		q, err := a.Failed(a.t.Context(), name)
		must(a.t, err)
		for _, t := range q.Tasks {
			ids = append(ids, t.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// What failed is listed with its error, scope and tries, and what waits for its limits is no failure.
func TestFailed(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	a.failing("p/a")
	if got := a.failed(); !slices.Equal(got, []string{"p/a-again", "p/a-end"}) {
		t.Fatalf("%q", got)
	}
	q, err := a.Failed(t.Context(), "failing")
	must(t, err)
	if q.Archived != 1 || q.Retry != 1 || q.More {
		t.Errorf("%+v", q)
	}
	for _, f := range q.Tasks {
		kind, next := "invoice # of p/a-end is void", time.Duration(0)
		if !f.Archived {
			kind, next = "no answer in # s", time.Until(f.Next)
		}
		if f.Kind != kind || f.Scope != "p/a" || f.Type != "mail" || f.MaxRetry != 3 || f.At.IsZero() || f.Archived != (next < 50*time.Minute) || f.Archived == (f.Retried == 1) {
			t.Errorf("%+v", f)
		}
	}
	if q, err := a.Failed(t.Context(), "none"); err != nil || len(q.Tasks) > 0 {
		t.Errorf("a queue that does not exist: %+v, %v", q, err)
	}
}

// Retrying and deleting, by each role: what the actor may not change is left and named, and what it may not see is none, by ids and by the
// kind of the error.
func TestFailedByRole(t *testing.T) {
	t.Parallel()
	scopes := []string{"p/a", "p/b", "q"}
	for _, actor := range []Actor{
		{Name: "anna", Role: RoleOwner}, {Name: "anna", Role: RoleOwner, Scopes: []string{"p/a"}}, {Name: "anna", Role: RoleViewer},
		{Name: "anna", Role: RoleViewer, Scopes: []string{"q"}}, {Name: "root", Role: RoleAdmin}, {Name: "anna"},
	} {
		for _, verb := range []Verb{VerbRun, VerbCancel} {
			for _, byID := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %v %s, by id: %t", actor.Role, actor.Scopes, verb, byID), func(t *testing.T) {
					t.Parallel()
					a, audit := newTasks(t)
					a.failing(scopes...)
					c := TaskChange{Verb: verb, Failed: true, Queue: "failing", Error: "no answer in # s", Reason: "again"}
					if byID {
						c.Error, c.IDs = "", ids("p/a-again", "p/b-again", "q-again", "none")
					}
					want, refused := []string{}, Refused{}
					for _, scope := range scopes {
						switch {
						case a.May(actor, VerbSee, scope) != nil:
						case actor.Role == RoleAdmin || actor.Role == RoleOwner && scope == "p/a":
							want = append(want, scope+"-again")
						default:
							refused[scope] = 1
						}
					}
					n, err := a.Count(t.Context(), actor, c)
					must(t, err)
					done, err := a.ApplyTasks(t.Context(), actor, c)
					must(t, err)
					if int(n.Tasks) != len(want) || done.Changed != len(want) || fmt.Sprint(done.Refused) != fmt.Sprint(refused) || fmt.Sprint(n.Refused) != fmt.Sprint(refused) {
						t.Errorf("counted %+v, did %+v; want %v changed and %v refused", n, done, want, refused)
					}
					if gone := done.Left[waiting.Gone]; byID && gone != 4-len(want)-len(refused) || !byID && gone > 0 {
						t.Errorf("%d are gone: %+v", gone, done)
					}
					left := slices.DeleteFunc([]string{"p/a-again", "p/a-end", "p/b-again", "p/b-end", "q-again", "q-end"}, func(id string) bool { return slices.Contains(want, id) })
					if got := a.failed(); !slices.Equal(got, left) || len(a.places()) != 7 {
						t.Errorf("still failed: %q, want %q; %q wait", got, left, a.places())
					}
					for _, id := range want {
						info, err := a.inspector.GetTaskInfo("failing", id)
						if (verb == VerbRun) != (err == nil && info.State == asynq.TaskStatePending) {
							t.Errorf("%s: %+v, %v", id, info, err)
						}
					}
					word := map[Verb]string{VerbRun: "verb=retry", VerbCancel: "verb=delete"}[verb]
					if !strings.Contains(audit.String(), word) || !strings.Contains(audit.String(), "reason=again") {
						t.Errorf("the audit: %s", audit)
					}
				})
			}
		}
	}
}

// A failed task that another actor has retried is left, and an archived one is deleted or retried with the others.
func TestFailedOnce(t *testing.T) {
	t.Parallel()
	a, _ := newTasks(t)
	a.failing("p/a", "p/a/x", "p/b")
	a.changes(TaskChange{Verb: VerbRun, Failed: true, IDs: ids("p/a-end"), Queue: "failing"}, 1)
	if done := a.changes(TaskChange{Verb: VerbCancel, Failed: true, IDs: ids("p/a-end", "p/b-end", "a0")}, 1); done.Left[waiting.Pending] != 2 {
		t.Errorf("%+v", done)
	}
	if done := a.changes(TaskChange{Verb: VerbCancel, Failed: true, Scope: "p/a", Most: 2}, 2); !done.More || len(a.places()) != 7 {
		t.Errorf("%+v, %q", done, a.places())
	}
	if a.changes(TaskChange{Verb: VerbCancel, Failed: true}, 2); len(a.failed()) > 0 {
		t.Errorf("left %q", a.failed())
	}
	for _, c := range []TaskChange{{Verb: VerbMove, Failed: true, To: "p"}, {Verb: VerbRun, Failed: true, Type: "mail"}, {Verb: VerbCancel, Scope: "p", Error: "x"}} {
		if _, err := a.ApplyTasks(t.Context(), admin, c); !errors.As(err, new(*TaskChangeError)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestErrorKind(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", " no answer in 30s ": "no answer in #s", "a\nb": "a", "429: 7 of 1204": "#: # of #", strings.Repeat("ü", 300): strings.Repeat("ü", 100),
		"x\xff1": "x\ufffd#", "٣": "٣",
	} {
		if got := ErrorKind(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
