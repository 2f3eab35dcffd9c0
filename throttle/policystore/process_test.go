package policystore

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
)

// announced is a process that makes itself known until it is stopped.
func announced(ctx context.Context, what func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { what(ctx) })
	return func() { cancel(); done.Wait() }
}

func processes(t *testing.T, s *Store) []Process {
	t.Helper()
	list, err := s.Processes(t.Context())
	must(t, err)
	return list
}

// docs/keys.md: application, host, process id, and which version is in force there, or that it does not
// follow; for 45 seconds after it was killed, and no longer than it runs otherwise.
func TestProcesses(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	l, err := throttle.New(rdb, policyOf(t, file), throttle.Config{})
	must(t, err)
	follow := announced(t.Context(), func(ctx context.Context) { Follow(ctx, s, l, FollowConfig{App: "mail", Worker: true}) })
	fixed := announced(t.Context(), func(ctx context.Context) { Announce(ctx, s, Process{App: "billing", Version: 7, Follows: true}) })
	host, err := os.Hostname()
	must(t, err)
	known := func(want ...Process) {
		t.Helper()
		var got []Process
		redistest.WaitAsking(t, "the processes to be known", time.Minute, func() bool {
			got = processes(t, s)
			if len(got) != len(want) {
				return false
			}
			for i := range got {
				got[i].ID = ""
				want[i].Host, want[i].PID = host, os.Getpid()
				if got[i] != want[i] {
					return false
				}
			}
			return true
		})
	}
	known(Process{App: "billing"}, Process{App: "mail", Worker: true, Follows: true, Version: 1})
	must(t, set(s, anna, "payments", "account", "limit=5"))
	known(Process{App: "billing"}, Process{App: "mail", Worker: true, Follows: true, Version: 2})
	if ttl := rdb.PTTL(t.Context(), s.processes).Val(); ttl <= lease || ttl > 12*time.Minute {
		t.Errorf("they stay for %s", ttl)
	}
	if n := rdb.ZCard(t.Context(), s.processes).Val(); n != 2 {
		t.Errorf("%d members of two processes", n)
	}
	follow()
	known(Process{App: "billing"})
	fixed()
	known()
}

// A user that may not say so follows the limits all the same, and asks once an hour.
func TestProcessMayNotBeKnown(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	mute := New(server.User(t, []string{"hw:{*"}, "%R~hw:limits*", "hget", "time", "zadd", "pexpire", "zrem", "zremrangebyscore"), Config{})
	a := newAnnouncer(mute, Process{App: "mail"})
	a.renew(t.Context(), 1)
	if left := time.Until(a.due); a.member != "" || left < 59*time.Minute || left > time.Hour {
		t.Errorf("%q, again in %s", a.member, left)
	}
	if _, err := mute.Processes(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
		t.Error(err)
	}
}
