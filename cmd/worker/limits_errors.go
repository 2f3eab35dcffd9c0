package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/limitsfile"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// loadPolicy reads a limits file. Every fault in it is one line of the error.
func loadPolicy(path string) (*policy.Policy, error) {
	p, err := limitsyaml.Load(path)
	if err != nil {
		return nil, limitsUnread(path, err)
	}
	return p, nil
}

func limitsUnread(path string, err error) error {
	switch {
	case errors.Is(err, limitsfile.ErrBusy), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, new(*policy.Error)):
		return &cli.Error{What: err.Error(), Try: "correct these lines of " + path, Err: err}
	case errors.Is(err, fs.ErrNotExist):
		return &cli.Error{What: "there is no limits file " + path, Try: fileLike(path), Err: err}
	case errors.Is(err, fs.ErrPermission):
		return &cli.Error{What: "no permission to read the limits file " + path, Try: "chmod +r " + path, Err: err}
	}
	return &cli.Error{What: "cannot read the limits file " + path + ": " + err.Error(), Err: err}
}

// fileLike is what to try instead of a file that does not exist: the file beside it whose name is nearest.
func fileLike(path string) string {
	dir, name := filepath.Split(path)
	var names []string
	entries, _ := os.ReadDir(cmp.Or(dir, ".")) // none can be read, none is near
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if near := diag.Nearest(name, names); near != "" {
		return dir + near
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(name, n) || strings.HasPrefix(n, name) }); i >= 0 {
		return dir + names[i]
	}
	return "ls " + cmp.Or(dir, ".") + ", or docs/get-started.md for a first limits file"
}

// explainLimits says what to do about limits in Redis that are not understood.
func explainLimits(err error) error {
	if errors.Is(err, policystore.ErrNone) {
		return cli.Errorf("worker -limits limits.yaml (see examples/quickstart/limits.yaml)",
			"there are no limits: -limits is not given, and no worker has published any")
	}
	if errors.As(err, new(*policystore.DamagedError)) {
		return &cli.Error{What: plainly(err), Try: "the newest version of this program; DEL hw:limits removes every live change", Err: err}
	}
	if errors.As(err, new(*policy.Error)) {
		return &cli.Error{What: err.Error(), Try: "worker -limits limits.yaml, which publishes valid limits", Err: err}
	}
	return err
}
