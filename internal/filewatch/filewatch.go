// Package filewatch reports when a file has changed: written in place, replaced by a rename as editors
// do, or through another target of a symlink, as Kubernetes changes a ConfigMap.
package filewatch

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	lookEvery = 10 * time.Second // where the system reports no changes: network file systems, too many watches
	settles   = time.Second      // a program that writes in place may be half-way through
)

// Changes returns a channel that gets a value at once, for changes before the watch began, and then each time the file at path
// has changed, appeared or gone and has stayed so for a second. Values that were not received count as one. The channel is closed
// when ctx ends. The system reports changes (package fsnotify); every ten seconds the file is looked at anyway.
func Changes(ctx context.Context, path string) <-chan struct{} {
	return changes(ctx, path, lookEvery, settles)
}

func changes(ctx context.Context, path string, lookEvery, settles time.Duration) <-chan struct{} {
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	f := &file{path: path, reported: stat(path)}
	f.seen = f.reported
	go func() {
		defer close(changed)
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			watcher = &fsnotify.Watcher{} // its channels are nil: no event ever comes
		} else {
			defer func() { _ = watcher.Close() }()
		}
		for wait := time.Duration(0); ; {
			select {
			case <-ctx.Done():
				return
			case <-watcher.Events: // of any file beside it: the target of a symlink has another name
			case <-watcher.Errors: //nolint:errcheck // the slow look goes on
			case <-time.After(wait):
			}
			if err == nil {
				f.watch(watcher)
			}
			if f.look(settles) {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
			if wait = lookEvery; !same(f.seen, f.reported) {
				wait = settles - time.Since(f.since)
			}
		}
	}()
	return changed
}

// file is what was seen of the file. An fs.FileInfo is nil where there was none.
type file struct {
	path     string
	reported fs.FileInfo
	seen     fs.FileInfo
	since    time.Time // when it was seen first
}

// watch watches the directories of the file and of what it is a symlink to. It is repeated, since a
// directory may have been replaced; one that cannot be watched is looked at slowly.
func (f *file) watch(w *fsnotify.Watcher) {
	_ = w.Add(filepath.Dir(f.path))
	if target, err := filepath.EvalSymlinks(f.path); err == nil {
		_ = w.Add(filepath.Dir(target))
	}
}

// look looks at the file and reports whether it has changed and settled.
func (f *file) look(settles time.Duration) bool {
	if now := stat(f.path); !same(now, f.seen) {
		f.seen, f.since = now, time.Now()
	}
	if same(f.seen, f.reported) || time.Since(f.since) < settles {
		return false
	}
	f.reported = f.seen
	return true
}

// stat follows symlinks.
func stat(path string) fs.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// same reports whether both are of one file that was not written in between.
func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
