from probekit.experiment.catalogue import bundled_experiments


def test_experiments_are_listed_with_what_they_need(repository):
    listed = {one.name: one for one in bundled_experiments()}
    assert listed.keys() == {path.stem for path in (repository / "experiments").glob("*.yaml")}
    assert listed["quickstart"].needs == ()
    assert listed["quickstart"].command == "probekit run quickstart"
    assert listed["gpt2_small"].needs == ("network: downloads gpt2",)
    assert listed["ewt_upos"].needs == ("train.conllu, test.conllu: --set data.root=FOLDER",)
    assert all(one.question for one in listed.values())


def test_recipes_are_last_and_have_their_own_command():
    *experiments, recipe = bundled_experiments()
    assert recipe.command == "probekit pretrain pretrain_mini"
    assert all(one.command == f"probekit run {one.name}" for one in experiments)
