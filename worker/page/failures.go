package page

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/internal/asynqread"
)

// failures is one reading of what failed and what runs: of the asynq queues that were read longest ago.
type failures struct {
	names   []string
	queues  map[string]control.FailedQueue
	read    map[string]time.Time
	started map[asynqread.TaskRef]time.Time // when the active tasks were picked up, as far as it is known
	runs    []providerRuns                  // of today
}

type providerRuns struct {
	Scope string
	usage.Runs
}

// FailedPart and RefusedPart are percents of the runs that started.
func (p providerRuns) FailedPart() int  { return partOf(p.Failed, p.Started) }
func (p providerRuns) RefusedPart() int { return partOf(p.Refused, p.Started) }

const (
	// failuresAtOnce is how many queues one reading reads.
	failuresAtOnce = 10
	// mostRuns bounds the providers of which runs are read, and mostServers the asynq servers.
	mostRuns, mostServers = 40, 1000
)

// loadFailures reads ten queues, with up to 30 commands for each.
func (h *handler) loadFailures(ctx context.Context, _ url.Values, last any) (any, error) {
	f := &failures{queues: map[string]control.FailedQueue{}, read: map[string]time.Time{}}
	if _, err := h.limits(ctx); err != nil {
		return nil, err
	}
	var err error
	if f.names, err = h.queueNames(); err != nil {
		return nil, err
	}
	if before, again := last.(*failures); again {
		for _, name := range f.names {
			f.queues[name], f.read[name] = before.queues[name], before.read[name]
		}
	}
	for _, name := range longestAgo(f.names, failuresAtOnce, func(name string) time.Time { return f.read[name] }) {
		if f.queues[name], err = h.service.Failed(ctx, name); err != nil {
			return nil, err
		}
		f.read[name] = h.now()
	}
	if f.runs, err = h.loadRuns(ctx); err != nil {
		return nil, err
	}
	keys, _, err := asynqread.ServerKeys(ctx, h.cfg.Redis, h.now(), mostServers)
	if err == nil {
		f.started, err = asynqread.Starts(ctx, h.cfg.Redis, keys)
	}
	return f, err
}

func (h *handler) loadRuns(ctx context.Context) (list []providerRuns, err error) {
	names, err := h.service.Providers(ctx)
	if err != nil {
		return nil, err
	}
	names = names[:min(len(names), mostRuns)]
	runs, err := usage.Today(ctx, h.cfg.Redis, usage.Config{Prefix: h.cfg.KeyPrefix}, names, h.now())
	for i, ended := range runs {
		list = append(list, providerRuns{names[i], ended})
	}
	return list, err
}

type failuresData struct {
	Scope, Queue, Error string // the filter
	Groups              []failureGroup
	AllGroups           int
	Rows                []failureRow
	All                 int // rows before the filter
	Pages               pages
	Partly              []string // queues of which not all failed tasks were looked at
	Read, Queues        int
	Runs                []providerRuns
	Running             []runningScope
	May                 bool // the actor may act on some of the rows
}

// failureGroup is the failed tasks of a scope and a queue whose errors are of one kind.
type failureGroup struct {
	Scope, Queue, Kind string
	Archived, Retry    int
	Last               time.Time
	May                bool
}

type failureRow struct {
	control.FailedTask
	Text  string // of the error
	Value string // its name in forms
	May   bool
}

type runningScope struct {
	Scope   string
	Tasks   int
	Oldest  control.ActiveTask
	Started time.Time // of Oldest, zero if it is not known
}

const mostGroups, mostErrorText = 100, 300

func (h *handler) failuresView(r *http.Request, actor Actor, data any) (any, string, error) {
	f := data.(*failures)
	d := failuresData{
		Scope: field(r, "scope"), Queue: field(r, "queue"), Error: field(r, "error"),
		Queues: len(f.names),
	}
	sees := func(scope string) bool { return h.service.May(actor, control.VerbSee, scope) == nil }
	running := map[string]*runningScope{}
	var rows []failureRow
	for _, name := range f.names {
		q := f.queues[name]
		if !f.read[name].IsZero() {
			d.Read++
		}
		for _, t := range q.Tasks {
			if sees(t.Scope) {
				rows = append(rows, failureRow{FailedTask: t})
			}
		}
		for _, t := range q.Active {
			if sees(t.Scope) {
				running[t.Scope] = running[t.Scope].with(t, f.started[asynqread.TaskRef{Queue: t.Queue, ID: t.ID}])
			}
		}
		if q.More && sees("") { // the counts of a queue are those of all scopes
			d.Partly = append(d.Partly, name)
		}
	}
	for _, p := range f.runs {
		if sees(p.Scope) && p.Runs != (usage.Runs{}) {
			d.Runs = append(d.Runs, p)
		}
	}
	d.All = len(rows)
	rows = slices.DeleteFunc(rows, func(row failureRow) bool {
		return !matches(row.Scope, d.Scope) || !matches(row.Queue, d.Queue) || !matches(row.Kind, d.Error) && !matches(row.Error, d.Error)
	})
	may := func(scope string) bool { return h.mayDo(actor, scope).Act }
	d.Groups = groupsOf(rows)
	d.AllGroups = len(d.Groups)
	d.Groups = d.Groups[:min(mostGroups, len(d.Groups))]
	for i, g := range d.Groups {
		d.Groups[i].May = g.Scope != "" && may(g.Scope)
	}
	slices.SortStableFunc(rows, func(a, b failureRow) int { return b.At.Compare(a.At) })
	d.Rows, d.Pages = pageOf(rows, r)
	for i, row := range d.Rows {
		row.May, row.Text = may(row.Scope), strings.ToValidUTF8(row.Error[:min(len(row.Error), mostErrorText)], "")
		row.Value = taskValue(row.Queue, row.ID)
		d.Rows[i], d.May = row, d.May || row.May
	}
	for _, scope := range running {
		d.Running = append(d.Running, *scope)
	}
	slices.SortFunc(d.Running, func(a, b runningScope) int {
		return cmp.Or(cmp.Compare(b.Tasks, a.Tasks), strings.Compare(a.Scope, b.Scope))
	})
	d.Running = d.Running[:min(rowsAPage, len(d.Running))]
	return d, "Failures", nil
}

func groupsOf(rows []failureRow) (list []failureGroup) {
	at := map[[3]string]int{}
	for _, row := range rows {
		key := [3]string{row.Scope, row.Queue, row.Kind}
		i, is := at[key]
		if !is {
			i = len(list)
			at[key], list = i, append(list, failureGroup{Scope: row.Scope, Queue: row.Queue, Kind: row.Kind})
		}
		g := &list[i]
		if row.Archived {
			g.Archived++
		} else {
			g.Retry++
		}
		if row.At.After(g.Last) {
			g.Last = row.At
		}
	}
	slices.SortStableFunc(list, func(a, b failureGroup) int {
		return cmp.Or(cmp.Compare(b.Archived+b.Retry, a.Archived+a.Retry), b.Last.Compare(a.Last), strings.Compare(a.Scope, b.Scope))
	})
	return list
}

func (s *runningScope) with(t control.ActiveTask, started time.Time) *runningScope {
	if s == nil {
		s = &runningScope{Scope: t.Scope, Oldest: t, Started: started}
	}
	if s.Tasks++; !started.IsZero() && (s.Started.IsZero() || started.Before(s.Started)) {
		s.Oldest, s.Started = t, started
	}
	return s
}
