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
	// Settles is how long a file must have been unchanged: a program that writes it in place may be half-way through, and half a
	// file can be a valid one.
	Settles = time.Second
)

// Changes returns a channel that gets a value at once, for changes before the watch began, and then each time the file at path
// has changed, appeared or gone and has stayed so for a second. Values that were not received count as one. The channel is closed
// when ctx ends. The system reports changes (package fsnotify); every ten seconds the file is looked at anyway.
func Changes(ctx context.Context, path string) <-chan struct{} {
	return changes(ctx, path, lookEvery, Settles)
}

func changes(ctx context.Context, path string, lookEvery, settles time.Duration) <-chan struct{} {
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	f := &file{path: path}
	f.reported, _ = StampOf(path)
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
			if wait = lookEvery; !f.seen.Same(f.reported) {
				wait = settles - time.Since(f.since)
			}
		}
	}()
	return changed
}

// file is what was seen of the file.
type file struct {
	path     string
	reported Stamp
	seen     Stamp
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
	if now, _ := StampOf(f.path); !now.Same(f.seen) {
		f.seen, f.since = now, time.Now()
	}
	if f.seen.Same(f.reported) || time.Since(f.since) < settles {
		return false
	}
	f.reported = f.seen
	return true
}

// Stamp identifies a version of a file. Info is nil if there is no file.
type Stamp struct{ Info fs.FileInfo }

// StampOf returns the stamp of a file, or of the target of a symlink: a Kubernetes ConfigMap changes by another target.
func StampOf(path string) (Stamp, error) {
	info, err := os.Stat(path)
	return Stamp{info}, err
}

// SameFile reports whether both are of one file, which was at most written in place in between. A file that was renamed to the
// name, or that a link leads to now, is another.
func (s Stamp) SameFile(other Stamp) bool {
	return s.Info != nil && other.Info != nil && os.SameFile(s.Info, other.Info)
}

// Same reports whether both are of one file that was not written in between, or both of none.
func (s Stamp) Same(other Stamp) bool {
	if s.Info == nil || other.Info == nil {
		return s.Info == other.Info
	}
	return s.SameFile(other) && s.Info.ModTime().Equal(other.Info.ModTime()) && s.Info.Size() == other.Info.Size()
}
