package page

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

type workersState struct {
	limits    control.Limits
	processes []policystore.Process
	servers   []control.Server
	all       int // servers
	queues    []queueRow
}

type queueRow struct {
	Name                                        string
	Pending, Active, Scheduled, Retry, Archived int64
	Paused                                      bool
	Served, Unserved                            bool // by a live worker; neither if that is not known
}

// listsEvery is how often lists of asynq's queues and servers are read, and mostQueues how many queues at most.
const listsEvery, mostQueues = 5 * time.Second, 200

// loadWorkers costs some seven round trips, with six commands for each queue.
func (h *handler) loadWorkers(ctx context.Context, _ url.Values, _ any) (any, error) {
	s := &workersState{}
	var err error
	if s.limits, err = h.limits(ctx); err != nil {
		return nil, err
	}
	if s.processes, err = h.store.Processes(ctx); err != nil {
		return nil, err
	}
	if s.servers, s.all, err = h.service.Servers(ctx); err != nil {
		return nil, err
	}
	names, err := h.queueNames()
	if err != nil {
		return nil, err
	}
	if s.queues, err = h.queueCounts(ctx, names); err != nil {
		return nil, err
	}
	for i, q := range s.queues {
		served, known := h.service.Serves(ctx, q.Name)
		s.queues[i].Served, s.queues[i].Unserved = served, known && !served
	}
	return s, nil
}

// queueNames returns the names of asynq's queues, the first 200.
func (h *handler) queueNames() ([]string, error) {
	names, err := h.inspector.Queues()
	slices.Sort(names)
	return names[:min(len(names), mostQueues)], err
}

// queueCounts reads queues in one round trip. asynq's GetQueueInfo costs some fifty commands a queue.
func (h *handler) queueCounts(ctx context.Context, names []string) (rows []queueRow, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	counts := make([][6]*redis.IntCmd, len(names))
	_, err = h.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, name := range names {
			key := asynqx.QueuePrefix(name)
			counts[i] = [6]*redis.IntCmd{
				pipe.LLen(ctx, key+"pending"), pipe.LLen(ctx, key+"active"),
				pipe.ZCard(ctx, key+"scheduled"), pipe.ZCard(ctx, key+"retry"), pipe.ZCard(ctx, key+"archived"), pipe.Exists(ctx, key+"paused"),
			}
		}
		return nil
	})
	for i, name := range names {
		n := counts[i]
		rows = append(rows, queueRow{
			Name: name, Pending: n[0].Val(), Active: n[1].Val(), Scheduled: n[2].Val(), Retry: n[3].Val(), Archived: n[4].Val(), Paused: n[5].Val() > 0,
		})
	}
	return rows, err
}

type workersData struct {
	Version   int64
	Processes []processRow
	Servers   []control.Server
	All       int // servers
	Pages     pages
	Queues    []queueRow
	Mismatch  int
	Schedules []scheduleRow
	Few       bool // the actor may not see all scopes, and so no queues, which scopes share
}

type processRow struct {
	policystore.Process
	Behind bool // it decides under another version than the current one
}

type scheduleRow struct {
	*schedule.Schedule
	Runs []time.Time // the next ones
}

const nextRuns = 3

func (h *handler) workersView(r *http.Request, actor Actor, data any) (any, string, error) {
	s := data.(*workersState)
	d := workersData{All: s.all, Queues: s.queues}
	d.Servers, d.Pages = pageOf(s.servers, r)
	if d.Few = h.service.May(actor, control.VerbSee, "") != nil; d.Few {
		d.Queues, d.Servers = nil, slices.Clone(d.Servers)
		for i := range d.Servers {
			d.Servers[i].Queues = nil
		}
	}
	inForce := int64(0)
	if v := s.limits.Version; v != nil {
		d.Version = v.Number
		if !s.limits.At.Before(v.InForce.Add(2 * time.Second)) { // or else a process has had no time to follow
			inForce = v.Number
		}
	}
	for _, p := range s.processes {
		row := processRow{p, !p.Follows || inForce > 0 && p.Version > 0 && p.Version != inForce}
		if row.Behind {
			d.Mismatch++
		}
		d.Processes = append(d.Processes, row)
	}
	for _, s := range h.cfg.Schedules {
		if h.service.May(actor, control.VerbSee, s.Task.Scope) != nil {
			continue
		}
		row := scheduleRow{Schedule: s}
		for at := s.Next(h.now()); !at.IsZero() && len(row.Runs) < nextRuns; at = s.Next(at) {
			row.Runs = append(row.Runs, at)
		}
		d.Schedules = append(d.Schedules, row)
	}
	return d, "Workers and schedules", nil
}
