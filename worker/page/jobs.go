package page

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/headway-go/headway/worker/control"
)

const (
	// answerWithin is how long a request waits for its change of tasks before it is shown the progress instead.
	answerWithin = 2 * time.Second
	// mostRunning is how many changes of tasks run at once.
	mostRunning = 4
)

// job is a change of waiting tasks. It may go on after the request that began it was answered.
type job struct {
	change control.TaskChange
	begun  time.Time
	ctx    context.Context //nolint:containedctx // of the job, which outlasts its request
	stop   context.CancelFunc
	done   chan struct{} // closed at the end

	act *act  // the form; the result of the change after done
	err error // of a change that changed nothing; after done

	mu            sync.Mutex
	changed, left int
}

func (j *job) over() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// jobs are the changes of tasks of this process: the last one of each actor.
type jobs struct {
	ctx  context.Context //nolint:containedctx // ends when the page is closed, and no request does
	stop context.CancelFunc
	runs sync.WaitGroup

	mu   sync.Mutex
	last map[string]*job
}

func newJobs() *jobs {
	j := &jobs{last: map[string]*job{}}
	j.ctx, j.stop = context.WithCancel(context.Background())
	return j
}

// close stops the jobs, and waits until each has recorded what it did.
func (j *jobs) close() {
	j.stop()
	j.runs.Wait()
}

// begin starts a job, unless its actor or too many others have one under way.
func (j *jobs) begin(actor Actor, a *act, change control.TaskChange, now time.Time, run func(*job)) (*job, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	running := 0
	for _, other := range j.last {
		if !other.over() {
			running++
		}
	}
	last := j.last[actor.Name]
	switch {
	case j.ctx.Err() != nil:
		return nil, conflict("this page is closing: try again in a moment")
	case last != nil && !last.over():
		return nil, conflict(fmt.Sprintf("your change of tasks that began at %s is under way: wait for its end, or stop it", clockText(last.begun)))
	case running >= mostRunning:
		return nil, conflict(fmt.Sprintf("%d changes of tasks are under way: try again when one has ended", running))
	}
	ctx, stop := context.WithCancel(j.ctx)
	begun := &job{change: change, begun: now, ctx: ctx, stop: stop, done: make(chan struct{}), act: a}
	j.last[actor.Name] = begun
	j.runs.Go(func() {
		defer stop()
		defer close(begun.done)
		run(begun)
	})
	return begun, nil
}

func (j *jobs) of(actor string) (*job, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if last := j.last[actor]; last != nil {
		return last, nil
	}
	return nil, notFound("you have begun no change of tasks since the page was started; the history has what was changed before")
}

// startJob makes the change of a form, and shows its result, or its progress if it lasts.
func (h *handler) startJob(w http.ResponseWriter, r *http.Request, actor Actor, a *act, change control.TaskChange) error {
	begun, err := h.jobs.begin(actor, a, change, h.now(), func(j *job) { h.runJob(actor, j) })
	if err != nil {
		return err
	}
	select {
	case <-begun.done:
		if begun.err != nil {
			return begun.err
		}
		return h.render(w, r, http.StatusOK, "act", view{Title: a.Title, Actor: actor, Data: a})
	case <-time.After(h.answerWithin):
		h.hub.forget() // the last job of the actor
		http.Redirect(w, r, h.link("/progress"), http.StatusSeeOther)
		return nil
	}
}

// runJob makes the change of a job, and fills in the result.
func (h *handler) runJob(actor Actor, j *job) {
	ctx, a, change := j.ctx, j.act, j.change
	change.Most = h.most
	change.Progress = func(changed, left int) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.changed, j.left = changed, left
	}
	done, err := h.service.ApplyTasks(ctx, actor, change)
	switch {
	case err != nil && ctx.Err() != nil:
		a.Err = "it was stopped"
	case err != nil && len(done.Tasks) == 0:
		j.err = err
		return
	case err != nil:
		a.Err = control.Plain(err)
	}
	for _, task := range done.Tasks {
		if task.Outcome != control.TaskChanged && len(a.Failed) < rowsAPage {
			a.Failed = append(a.Failed, task)
		}
	}
	done.Tasks = nil
	a.Done, a.Refused = &done, done.Refused
	h.forget()
	if a.Verb == control.VerbClear && done.More && ctx.Err() == nil {
		n, err := h.service.Count(ctx, actor, control.TaskChange{Verb: a.Verb, Scope: a.Scope})
		if err == nil {
			a.Still = &n
		} else {
			a.Err = cmp.Or(a.Err, control.Plain(err))
		}
	}
}

type progress struct {
	*act
	Running       bool
	Changed, Over int // tasks that were changed, and tasks that are done with
	Of            int64
	Begun         time.Time
}

func (h *handler) loadJob(_ context.Context, of url.Values, _ any) (any, error) {
	return h.jobs.of(of.Get("actor"))
}

func (h *handler) progressView(_ *http.Request, _ Actor, data any) (any, string, error) {
	j := data.(*job)
	p := progress{act: j.act, Of: j.act.expected, Begun: j.begun, Running: !j.over()}
	if !p.Running {
		return p, j.act.Title, j.err
	}
	p.act = &act{verbForm: j.act.verbForm, Scope: j.act.Scope} // the form itself changes until the end
	j.mu.Lock()
	defer j.mu.Unlock()
	p.Changed, p.Over = j.changed, j.changed+j.left
	return p, j.act.Title, nil
}

// postStop ends a job: what was changed stays changed.
func (h *handler) postStop(w http.ResponseWriter, r *http.Request, actor Actor) error {
	last, err := h.jobs.of(actor.Name)
	if err != nil {
		return err
	}
	last.stop()
	select {
	case <-last.done:
	case <-r.Context().Done():
	}
	http.Redirect(w, r, h.link("/progress"), http.StatusSeeOther)
	return nil
}
