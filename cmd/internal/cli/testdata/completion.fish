# Completion of p for fish, by: p completion fish
function __headway_p_at --description 'whether this command is typed'
	set -l command p
	set -l skip 0
	set -l typed (commandline -opc)
	for word in $typed[2..-1]
		if test $skip = 1
			set skip 0
			continue
		end
		switch "$command $word"
			case 'p -allow-method' 'p -level' 'p -limits' 'p -n' 'p -redis' 'p -wait' 'p get -from'
				set skip 1
			case 'p get' 'p put' 'p completion'
				set command "$command $word"
		end
	end
	test "$command" = "$argv[1]"
end
complete -c p -n '__headway_p_at '\''p'\''' -f
complete -c p -n '__headway_p_at '\''p'\''' -a 'get' -d 'print it'
complete -c p -n '__headway_p_at '\''p'\''' -a 'put' -d 'write it'
complete -c p -n '__headway_p_at '\''p'\''' -a 'completion' -d 'print a script that completes commands and flags'
complete -c p -n '__headway_p_at '\''p'\''' -o allow-method -x -d 'may be given more than once, in two lines'
complete -c p -n '__headway_p_at '\''p'\''' -o h -d 'print the help'
complete -c p -n '__headway_p_at '\''p'\''' -o json -d 'print objects, and many words so that the line is filled'
complete -c p -n '__headway_p_at '\''p'\''' -o level -x -a 'info debug' -d ''
complete -c p -n '__headway_p_at '\''p'\''' -o limits -r -F -d ''
complete -c p -n '__headway_p_at '\''p'\''' -o n -x -d 'how many'
complete -c p -n '__headway_p_at '\''p'\''' -o redis -x -d 'where'
complete -c p -n '__headway_p_at '\''p'\''' -o wait -x -d ''
complete -c p -n '__headway_p_at '\''p get'\''' -f
complete -c p -n '__headway_p_at '\''p get'\''' -a 'one' -d 'the user'\''s own'
complete -c p -n '__headway_p_at '\''p get'\''' -a 'all' -d 'every one'
complete -c p -n '__headway_p_at '\''p get'\''' -o from -x -d 'where to begin'
complete -c p -n '__headway_p_at '\''p get'\''' -o h -d 'print the help'
complete -c p -n '__headway_p_at '\''p put'\''' -o force -d ''
complete -c p -n '__headway_p_at '\''p put'\''' -o h -d 'print the help'
complete -c p -n '__headway_p_at '\''p completion'\''' -f
complete -c p -n '__headway_p_at '\''p completion'\''' -a 'bash' -d 'source <(p completion bash), in ~/.bashrc'
complete -c p -n '__headway_p_at '\''p completion'\''' -a 'zsh' -d 'source <(p completion zsh), in ~/.zshrc after compinit'
complete -c p -n '__headway_p_at '\''p completion'\''' -a 'fish' -d 'p completion fish > ~/.config/fish/completions/p.fish'
complete -c p -n '__headway_p_at '\''p completion'\''' -o h -d 'print the help'
complete -c headway-p -w p
