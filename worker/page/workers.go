package page

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// workersState is one reading of servers, queues and processes.
type workersState struct {
	limits    control.Limits
	processes []policystore.Process
	servers   []serverRow
	serversAt time.Time
	queues    []queueRow
	read      map[string]time.Time // by queue
}

type serverRow struct {
	Host, Status string
	PID          int
	Concurrency  int
	Active       int
	Queues       map[string]int
	Started      time.Time
}

type queueRow struct {
	Name                                        string
	Pending, Active, Scheduled, Retry, Archived int64
	Paused                                      bool
	Served                                      bool
}

const (
	// queuesASnapshot is how many queues' counts one snapshot reads, and queueCost the commands for each.
	// Of more queues it reads some in turn.
	queuesASnapshot, queueCost = 6, 6
	// mostQueues bounds the list.
	mostQueues = 200
	// serversEvery is how often the servers are read. asynq's list costs three commands for each.
	serversEvery = 15 * time.Second
)

func (h *handler) workersTopic(*http.Request, Actor) (topic, error) {
	return topic{key: "workers", cost: fixed(limitsCost + 2 + 1 + queuesASnapshot*queueCost), load: h.loadWorkers}, nil
}

func (h *handler) loadWorkers(ctx context.Context, last any) (any, error) {
	s, now := &workersState{read: map[string]time.Time{}}, h.now()
	before, again := last.(*workersState)
	if again {
		*s = *before
	}
	var err error
	if s.limits, err = h.limits(ctx); err != nil {
		return nil, err
	}
	if s.processes, err = h.store.Processes(ctx); err != nil {
		return nil, err
	}
	if now.Sub(s.serversAt) >= serversEvery {
		if s.servers, err = h.servers(); err != nil {
			return nil, err
		}
		s.serversAt = now
	}
	names, err := h.inspector.Queues()
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	names = names[:min(len(names), mostQueues)]
	return s, h.loadQueues(ctx, s, names, !again)
}

func (h *handler) servers() (list []serverRow, err error) {
	servers, err := h.inspector.Servers()
	for _, one := range servers {
		list = append(list, serverRow{one.Host, one.Status, one.PID, one.Concurrency, len(one.ActiveWorkers), one.Queues, one.Started})
	}
	slices.SortFunc(list, func(a, b serverRow) int { return a.Started.Compare(b.Started) })
	return list, err
}

// loadQueues reads the counts of the queues that were read longest ago, or of all.
func (h *handler) loadQueues(ctx context.Context, s *workersState, names []string, all bool) error {
	served, known, read := map[string]bool{}, map[string]queueRow{}, map[string]time.Time{}
	for _, one := range s.servers {
		for name := range one.Queues {
			served[name] = true
		}
	}
	for _, q := range s.queues {
		known[q.Name] = q
	}
	due := slices.Clone(names)
	slices.SortStableFunc(due, func(a, b string) int { return s.read[a].Compare(s.read[b]) })
	if !all {
		due = due[:min(len(due), queuesASnapshot)]
	}
	for _, name := range due {
		q, err := h.queueCounts(ctx, name)
		if err != nil {
			return err
		}
		known[name] = q
	}
	s.queues = nil
	for _, name := range names {
		q, at := known[name], s.read[name]
		if slices.Contains(due, name) {
			at = h.now()
		}
		q.Name, q.Served, read[name] = name, served[name], at
		s.queues = append(s.queues, q)
	}
	s.read = read
	return nil
}

// queueCounts reads the counts of an asynq queue. asynq's GetQueueInfo also samples the memory of
// tasks, which costs some fifty commands a queue.
func (h *handler) queueCounts(ctx context.Context, name string) (queueRow, error) {
	key := asynqx.QueuePrefix(name)
	q := queueRow{Name: name}
	var pending, active, scheduled, retry, archived, paused *redis.IntCmd
	_, err := h.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pending, active = pipe.LLen(ctx, key+"pending"), pipe.LLen(ctx, key+"active")
		scheduled, retry, archived = pipe.ZCard(ctx, key+"scheduled"), pipe.ZCard(ctx, key+"retry"), pipe.ZCard(ctx, key+"archived")
		paused = pipe.Exists(ctx, key+"paused")
		return nil
	})
	if err != nil {
		return q, err
	}
	q.Pending, q.Active, q.Scheduled = pending.Val(), active.Val(), scheduled.Val()
	q.Retry, q.Archived, q.Paused = retry.Val(), archived.Val(), paused.Val() > 0
	return q, nil
}

type workersData struct {
	Version   int64
	Processes []processRow
	Servers   []serverRow
	Queues    []queueRow
	Mismatch  int
	Schedules []scheduleRow
	Own       bool // this process runs schedules
}

type processRow struct {
	policystore.Process
	Behind bool // it decides under another version than the current one
}

type scheduleRow struct {
	Name, Cron, Timezone, Scope, Type string
	Next                              []time.Time
}

// nextRuns is how many runs of each schedule the page shows.
const nextRuns = 3

func (h *handler) workersView(_ *http.Request, who Actor, data any) (any, string, error) {
	s := data.(*workersState)
	d := workersData{Servers: s.servers, Queues: s.queues, Own: len(h.cfg.Schedules) > 0}
	inForce := int64(0)
	if v := s.limits.Version; v != nil {
		d.Version, inForce = v.Number, v.Number
		if s.limits.At.Before(v.InForce.Add(2 * time.Second)) { // it has had no time to follow yet
			inForce = 0
		}
	}
	for _, p := range s.processes {
		row := processRow{p, !p.Follows || inForce > 0 && p.Version > 0 && p.Version != inForce}
		if row.Behind {
			d.Mismatch++
		}
		d.Processes = append(d.Processes, row)
	}
	for _, one := range h.cfg.Schedules {
		if h.service.May(who, control.VerbSee, one.Task.Scope) != nil {
			continue
		}
		row := scheduleRow{Name: one.Name, Cron: one.Cron, Timezone: one.Timezone, Scope: one.Task.Scope, Type: one.Task.Type}
		for at := h.now(); len(row.Next) < nextRuns; {
			if at = one.Next(at); at.IsZero() {
				break
			}
			row.Next = append(row.Next, at)
		}
		d.Schedules = append(d.Schedules, row)
	}
	return d, "Workers and schedules", nil
}
