package main

import (
	"bytes"
	"context"
	"os"
	"time"
)

// reloadEvery is how often the limits file is looked at.
const reloadEvery = 500 * time.Millisecond

// reload publishes the limits file whenever it has changed, and with each signal, until
// ctx ends. A file with faults changes nothing.
func (l *limits) reload(ctx context.Context, signals <-chan os.Signal) {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	stood := l.stood
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-signals:
			asked = true
		case <-tick.C:
		}
		stands := stampOf(l.path)
		if !asked && (stands == stood || stands == fileStamp{}) {
			continue // the same, or not there: it is being replaced
		}
		if l.read(ctx, asked) {
			stood = stands
		}
	}
}

// fileStamp tells a file from what stood in its place before; the zero stamp is of none.
type fileStamp struct {
	at   time.Time
	size int64
}

func stampOf(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{info.ModTime(), info.Size()}
}

// read reads and publishes the file. It returns false where Redis has to be asked again.
func (l *limits) read(ctx context.Context, asked bool) (done bool) {
	policy, err := loadPolicy(l.path)
	if err != nil {
		l.log.ErrorContext(ctx, "the limits file cannot be used; the limits in force stay", "file", l.path, "error", err)
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.file
	if bytes.Equal(policy.YAML(), before.YAML()) {
		if asked {
			l.log.InfoContext(ctx, "the limits file says what it said before", "file", l.path)
		}
		return true
	}
	l.file = policy
	if err := l.publish(ctx, before); err != nil {
		l.file = before
		if !l.told {
			l.log.WarnContext(ctx, "the limits file has changed and could not be published; trying again", "file", l.path, "error", err)
		}
		l.told = true
		return false
	}
	l.told = false
	return true
}
