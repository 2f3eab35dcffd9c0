package policystore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// Process is a running process that decides under limits.
type Process struct {
	// App is the name of its application. Follow and Announce default it to the program's name.
	App string `json:"app"`
	// Host is the host's name, and PID the process's id there. Follow and Announce set both.
	Host string `json:"host"`
	PID  int    `json:"pid"`
	// Worker reports that the process runs tasks.
	Worker bool `json:"worker,omitempty"`
	// Follows reports that the process follows the limits in Redis. Version is the version in force
	// there, 0 for none yet. A process that does not follow keeps the limits that it began with.
	Follows bool  `json:"follows,omitempty"`
	Version int64 `json:"version,omitempty"`
	// ID identifies the process. Follow and Announce generate it.
	ID string `json:"id"`
}

// named is the process with what it is called where it does not say so.
func (p Process) named() Process {
	p.ID, p.PID = rand.Text(), os.Getpid()
	p.App = cmp.Or(p.App, strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"))
	p.Host = "unknown"
	if host, err := os.Hostname(); err == nil {
		p.Host = host
	}
	return p
}

// Processes returns the processes that follow the limits, and those that announce limits of their own,
// by name. A process that died stays in the list for 45 seconds. A process that uses neither Follow
// nor Announce is not in it. Costs two round trips.
func (s *Store) Processes(ctx context.Context) ([]Process, error) {
	now, err := s.Time(ctx)
	if err != nil {
		return nil, err
	}
	var all *redis.StringSliceCmd
	err = redisread.FromMaster(ctx, s.rdb, func(p redis.Pipeliner) error {
		all = p.ZRangeByScore(ctx, s.processes, &redis.ZRangeBy{Min: "(" + strconv.FormatInt(now.UnixMilli(), 10), Max: "+inf"})
		return nil
	})
	if err != nil {
		return nil, unavailable(ctx, "ask who follows", err)
	}
	known := map[string]Process{}
	for _, text := range all.Val() { // what a process said last comes last
		var p Process
		if json.Unmarshal([]byte(text), &p) == nil {
			known[p.ID] = p
		}
	}
	list := make([]Process, 0, len(known))
	for _, p := range known {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// Announce publishes, until ctx ends, that a process has limits and does not follow those in Redis, so
// that an editor of the limits can see it. It does nothing if the Redis user has no permission. Costs
// two round trips each 15 seconds.
func Announce(ctx context.Context, s *Store, p Process) {
	p.Follows, p.Version = false, 0
	a := newAnnouncer(s, p)
	defer a.leave(ctx)
	for ctx.Err() == nil {
		a.renew(ctx, 0)
		timer := time.NewTimer(time.Until(a.due))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// announcer makes one process known.
type announcer struct {
	store  *Store
	self   Process
	member string // what stands there
	due    time.Time
	tidy   tidying
}

func newAnnouncer(s *Store, p Process) *announcer { return &announcer{store: s, self: p.named()} }

// renew says what the process is, if that is another thing now, or was said long enough ago.
func (a *announcer) renew(ctx context.Context, version int64) {
	if time.Now().Before(a.due) && version == a.self.Version {
		return
	}
	next := a.self
	next.Version = version
	text, err := json.Marshal(next)
	if err != nil {
		return // it has nothing that JSON does not
	}
	before := a.member
	if before == string(text) {
		before = ""
	}
	_, err = a.store.leaseOut(ctx, a.store.processes, string(text), before, 0, &a.tidy)
	a.self, a.due = next, time.Now().Add(renewLease)
	switch {
	case err == nil:
		a.member = string(text)
	case errors.Is(err, ErrNotPermitted):
		a.due = time.Now().Add(renewEvery)
	}
}

// leave says that the process ends.
func (a *announcer) leave(ctx context.Context) {
	if a.member == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBound)
	defer cancel()
	_ = a.store.rdb.ZRem(ctx, a.store.processes, a.member).Err() // else it is forgotten when its lease ends
}
