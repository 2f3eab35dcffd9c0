package page

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// workersState is one reading of servers, queues and processes.
type workersState struct {
	limits    control.Limits
	processes []policystore.Process
	servers   []serverRow
	all       int // servers
	queues    []queueRow
	read      map[string]time.Time // by queue
}

type queueRow struct {
	Name                                        string
	Pending, Active, Scheduled, Retry, Archived int64
	Paused                                      bool
	Known                                       bool // the counts were read
	Served                                      bool
	Unserved                                    bool // no live worker serves it
}

const (
	// queueCost is how many commands read the counts of a queue. Of more queues than a snapshot has commands for,
	// it reads some in turn.
	queueCost = 6
	// mostQueues bounds the list.
	mostQueues = 200
	// processesCost is the commands for the processes with limits, and queuesCost those for the names of asynq's
	// queues.
	processesCost, queuesCost = 2, 1
	// listsCost is the commands of a snapshot without those for single servers and queues.
	listsCost = limitsCost + processesCost + queuesCost + serverKeysCost
)

func (h *handler) workersTopic(*http.Request, Actor) (topic, error) {
	cost := func(last any) int {
		s, again := last.(*workersState)
		if !again {
			return snapshotCommands
		}
		return min(snapshotCommands, listsCost-serverKeysCost+h.servers.cost(h.now())+len(s.queues)*queueCost)
	}
	return topic{key: "workers", cost: cost, load: h.loadWorkers}, nil
}

func (h *handler) loadWorkers(ctx context.Context, last any) (any, error) {
	s := &workersState{read: map[string]time.Time{}}
	if before, again := last.(*workersState); again {
		*s = *before
	}
	var err error
	if s.limits, err = h.limits(ctx); err != nil {
		return nil, err
	}
	if s.processes, err = h.store.Processes(ctx); err != nil {
		return nil, err
	}
	left := snapshotCommands - listsCost + serverKeysCost - h.servers.cost(h.now())
	if err := h.servers.refresh(ctx, h.cfg.Redis, h.now()); err != nil {
		return nil, err
	}
	s.servers, s.all = h.servers.list()
	names, err := h.inspector.Queues()
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	names = names[:min(len(names), mostQueues)]
	return s, h.loadQueues(ctx, s, names, left/queueCost)
}

// loadQueues reads the counts of the most queues that were read longest ago.
func (h *handler) loadQueues(ctx context.Context, s *workersState, names []string, most int) error {
	known, read := map[string]queueRow{}, map[string]time.Time{}
	for _, q := range s.queues {
		known[q.Name] = q
	}
	due := slices.Clone(names)
	slices.SortStableFunc(due, func(a, b string) int { return s.read[a].Compare(s.read[b]) })
	due = due[:min(len(due), most)]
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
		served, sure := h.servers.serves(name)
		q.Name, q.Served, q.Unserved, read[name] = name, served, sure && !served, at
		s.queues = append(s.queues, q)
	}
	s.read = read
	return nil
}

// queueCounts reads the counts of an asynq queue. asynq's GetQueueInfo also samples the memory of
// tasks, which costs some fifty commands a queue.
func (h *handler) queueCounts(ctx context.Context, name string) (queueRow, error) {
	key := asynqx.QueuePrefix(name)
	q := queueRow{Name: name, Known: true}
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
	All       int // servers
	Read      int // those that were read so far
	Pages     pages
	Queues    []queueRow
	Mismatch  int
	Schedules []scheduleRow
	Own       bool // this process runs schedules
	Few       bool // the actor may not see all scopes, and so no queues, which scopes share
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

func (h *handler) workersView(r *http.Request, who Actor, data any) (any, string, error) {
	s := data.(*workersState)
	d := workersData{All: s.all, Read: len(s.servers), Queues: s.queues, Own: len(h.cfg.Schedules) > 0}
	d.Servers, d.Pages = pageOf(s.servers, r)
	if d.Few = h.service.May(who, control.VerbSee, "") != nil; d.Few {
		d.Queues, d.Servers = nil, slices.Clone(d.Servers)
		for i := range d.Servers {
			d.Servers[i].Queues = nil
		}
	}
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
