#compdef p headway-p
# Completion of p for zsh, by: p completion zsh
_headway_p() {
	local current=$words[CURRENT] previous=$words[CURRENT-1] command=p i
	local -a offers
	for ((i = 2; i < CURRENT; i++)); do
		case "$command $words[i]" in
		('p -allow-method' | 'p -level' | 'p -limits' | 'p -n' | 'p -redis' | 'p -wait' | 'p get -from') ((i++)) ;;
		('p get' | 'p put' | 'p completion') command+=" $words[i]" ;;
		esac
	done
	case "$command $previous" in
	('p -level') compadd -- 'info' 'debug'; return ;;
	('p -limits') _files; return ;;
	('p -allow-method' | 'p -level' | 'p -limits' | 'p -n' | 'p -redis' | 'p -wait' | 'p get -from') _message value; return ;;
	esac
	case "$command:$current" in
	('p:'-*)
		offers=(
			'-allow-method:may be given more than once, in two lines'
			'-h:print the help'
			'-json:print objects, and many words so that the line is filled'
			'-level:'
			'-limits:'
			'-n:how many'
			'-redis:where'
			'-wait:'
		)
		_describe -o flag offers ;;
	('p:'*)
		offers=(
			'get:print it'
			'put:write it'
			'completion:print a script that completes commands and flags'
		)
		_describe command offers ;;
	('p get:'-*)
		offers=(
			'-from:where to begin'
			'-h:print the help'
		)
		_describe -o flag offers ;;
	('p get:'*)
		offers=(
			'one:the user'\''s own'
			'all:every one'
		)
		_describe command offers ;;
	('p put:'-*)
		offers=(
			'-force:'
			'-h:print the help'
		)
		_describe -o flag offers ;;
	('p put:'*) _files ;;
	('p completion:'-*)
		offers=(
			'-h:print the help'
		)
		_describe -o flag offers ;;
	('p completion:'*)
		offers=(
			'bash:source <(p completion bash), in ~/.bashrc'
			'zsh:source <(p completion zsh), in ~/.zshrc after compinit'
			'fish:p completion fish > ~/.config/fish/completions/p.fish'
		)
		_describe command offers ;;
	esac
}
if [[ $funcstack[1] == _p ]]; then
	_headway_p "$@"
else
	compdef _headway_p p headway-p
fi
