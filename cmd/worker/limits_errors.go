package main

import (
	"context"
	"errors"
	"io/fs"

	"github.com/headway-go/headway/cmd/internal/cli"
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
		return &cli.Error{What: "there is no limits file " + path, Try: "-limits examples/quickstart/limits.yaml", Err: err}
	case errors.Is(err, fs.ErrPermission):
		return &cli.Error{What: "no permission to read the limits file " + path, Try: "chmod +r " + path, Err: err}
	}
	return &cli.Error{What: "cannot read the limits file " + path + ": " + err.Error(), Err: err}
}

// explainLimits says what to do about limits in Redis that are not understood.
func explainLimits(err error) error {
	if errors.Is(err, policystore.ErrNone) {
		return cli.Errorf("worker -limits limits.yaml (see examples/quickstart/limits.yaml)",
			"there are no limits: -limits is not given, and no worker has published any in the last 24 hours")
	}
	if errors.As(err, new(*policystore.DamagedError)) {
		return &cli.Error{What: plainly(err), Try: "the newest version of this program; DEL hw:limits removes every live change", Err: err}
	}
	if errors.As(err, new(*policy.Error)) {
		return &cli.Error{What: err.Error(), Try: "worker -limits limits.yaml, which publishes valid limits", Err: err}
	}
	return err
}
