package page

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/worker/internal/asynqread"
)

const (
	// serversEvery is how often each server is read, and serversASnapshot how many of them one snapshot reads
	// at most, with a command each. Of more servers it reads some in turn.
	serversEvery, serversASnapshot = 15 * time.Second, 20
	// serverKeysCost is the commands for the list of their keys, of which the first mostServers are read.
	serverKeysCost, mostServers = 2, 1000
)

// servers knows asynq's servers. It is safe for concurrent use.
type servers struct {
	mu    sync.Mutex
	keys  []string
	all   int       // how many there are
	at    time.Time // when keys and all were read
	known map[string]knownServer
}

type knownServer struct {
	asynqread.ServerInfo
	read time.Time
}

// serverRow is a server in the list.
type serverRow struct{ asynqread.ServerInfo }

// cost returns how many commands the next refresh sends at most.
func (l *servers) cost(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() {
		return serverKeysCost + serversASnapshot
	}
	return serverKeysCost + len(l.due(now))
}

// refresh reads which servers live, and those of them that were read longest ago.
func (l *servers) refresh(ctx context.Context, rdb redis.UniversalClient, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.at) < snapshotEvery/2 {
		return nil
	}
	keys, all, err := asynqread.ServerKeys(ctx, rdb, now, mostServers)
	if err != nil {
		return err
	}
	slices.Sort(keys)
	l.keys, l.all, l.at = keys, all, now
	due := l.due(now)
	read, err := asynqread.ReadServers(ctx, rdb, due)
	if err != nil {
		return err
	}
	known := map[string]knownServer{}
	for _, key := range keys {
		if was, is := l.known[key]; is {
			known[key] = was
		}
	}
	for _, key := range due {
		known[key] = knownServer{read[key], now} // the zero ServerInfo for one that has gone meanwhile
	}
	l.known = known
	return nil
}

// due returns the keys of the servers to read next. mu is held.
func (l *servers) due(now time.Time) (due []string) {
	for _, key := range l.keys {
		if now.Sub(l.known[key].read) >= serversEvery {
			due = append(due, key)
		}
	}
	slices.SortStableFunc(due, func(a, b string) int { return l.known[a].read.Compare(l.known[b].read) })
	return due[:min(len(due), serversASnapshot)]
}

// list returns the servers that were read, oldest first, and how many there are.
func (l *servers) list() (list []serverRow, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.known {
		if one.Host != "" {
			list = append(list, serverRow{one.ServerInfo})
		}
	}
	slices.SortFunc(list, func(a, b serverRow) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID))
	})
	return list, l.all
}

// serves reports whether a live worker serves a queue, and whether that is known: it is not while servers were not read yet.
func (l *servers) serves(name string) (served, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.known {
		if _, is := one.Queues[name]; is && one.Status == "active" { // another takes no more tasks
			return true, true
		}
	}
	return false, !l.at.IsZero() && len(l.known) == l.all
}

// queueServed is control.Config.Served.
func (h *handler) queueServed(ctx context.Context, name string) (served, known bool) {
	if err := h.servers.refresh(ctx, h.cfg.Redis, h.now()); err != nil {
		return false, false
	}
	return h.servers.serves(name)
}
