package policystore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
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
	// App is the name of its application. Follow and Announce default it to the program's name. They set ID, Host and PID, the process's id
	// there.
	App  string `json:"app"`
	Host string `json:"host"`
	PID  int    `json:"pid"`
	// Worker reports that the process runs tasks.
	Worker bool `json:"worker,omitempty"`
	// Follows reports that the process follows the limits in Redis. Version is the version in force there, 0 for none yet. A process that
	// does not follow keeps the limits that it began with.
	Follows bool   `json:"follows,omitempty"`
	Version int64  `json:"version,omitempty"`
	ID      string `json:"id"`
}

// Processes returns the processes that follow the limits, and those that announce limits of their own, by name. A process that died stays
// in the list for 45 seconds. A process that uses neither Follow nor Announce is not in it. Costs two round trips.
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
		return nil, unavailable(ctx, "ask which processes follow", err)
	}
	known := map[string]Process{}
	for _, text := range all.Val() { // the newest registration of a process is the last
		var p Process
		if json.Unmarshal([]byte(text), &p) == nil {
			known[p.ID] = p
		}
	}
	return slices.SortedFunc(maps.Values(known), func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	}), nil
}

// Announce publishes, until ctx ends, that a process has limits and does not follow those in Redis, so that an editor of the limits can see
// it. It does nothing if the Redis user has no permission. Costs two round trips each 15 seconds.
func Announce(ctx context.Context, s *Store, p Process) {
	p.Follows = false
	a := newAnnouncer(s, p)
	defer a.leave(ctx)
	for ctx.Err() == nil {
		a.renew(ctx, 0)
		sleep(ctx, time.Until(a.due))
	}
}

const (
	// renewEvery is how often a process registers, and lease how long that counts. deniedEvery is how often one tries that may not.
	renewEvery  = 15 * time.Second
	lease       = 3 * renewEvery
	deniedEvery = time.Hour
	leaveBound  = time.Second
)

// announcer registers one process, as a member of a sorted set by the end of its lease.
type announcer struct {
	store  *Store
	self   Process
	member string // that is registered, empty for none
	due    time.Time
}

func newAnnouncer(s *Store, p Process) *announcer {
	p.ID, p.PID = rand.Text(), os.Getpid()
	p.App = cmp.Or(p.App, strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"))
	host, _ := os.Hostname()
	p.Host = cmp.Or(host, "unknown")
	return &announcer{store: s, self: p}
}

// renew registers the process, if its version has changed or its registration is due.
func (a *announcer) renew(ctx context.Context, version int64) {
	if time.Now().Before(a.due) && version == a.self.Version {
		return
	}
	a.self.Version, a.due = version, time.Now().Add(renewEvery)
	if err := a.register(ctx); denied(err) {
		a.due = time.Now().Add(deniedEvery)
	}
}

// register registers the process in the place of its earlier state, and removes processes that died.
func (a *announcer) register(ctx context.Context) error {
	now, err := a.store.Time(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(a.self)
	if err != nil {
		return err
	}
	_, err = a.store.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		if a.member != "" && a.member != string(text) {
			p.ZRem(ctx, a.store.processes, a.member)
		}
		p.ZAdd(ctx, a.store.processes, redis.Z{Score: float64(now.Add(lease).UnixMilli()), Member: text})
		p.ZRemRangeByScore(ctx, a.store.processes, "-inf", "("+strconv.FormatInt(now.UnixMilli(), 10))
		p.PExpire(ctx, a.store.processes, 2*lease)
		return nil
	})
	if err == nil {
		a.member = string(text)
	}
	return err
}

// leave removes the registration of a process that ends. If Redis does not answer, its lease ends it.
func (a *announcer) leave(ctx context.Context) {
	if a.member == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBound)
	defer cancel()
	_ = a.store.rdb.ZRem(ctx, a.store.processes, a.member).Err()
}
